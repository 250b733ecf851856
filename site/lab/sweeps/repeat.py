"""From a sweep back to what was asked for: the REST body that repeats it, and the form that edits it."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from lab.form import fork, options
from lab.form.forms import MAX_LINK
from lab.form.offers import ARRAYS
from lab.form.settings import POINTERS
from lab.form.state import DEFAULTS
from lab.sweeps import fields, ranges
from lab.sweeps.form import OTHER, OTHER_VALUES, SKIP, first_engine
from workers.models import Sweep

PLACEHOLDER = fork.PLACEHOLDER
ONE_SHAPE = ("seed", "shape", "distribution")


def body_of(sweep: Sweep) -> dict[str, Any]:
    """The body of `POST /api/v1/sweeps`; arrays that were sent are left as uploads."""
    inputs = {name: array_of(name, given) for name, given in sweep.body.get("inputs", {}).items()}
    body = {**sweep.body, "inputs": inputs, "vary": sweep.vary}
    return body | {SKIP: True} if sweep.refused else body


def array_of(name: str, given: Any) -> Any:
    is_sent = isinstance(given, dict) and "source" in given
    return {"upload": PLACEHOLDER, "name": name} if is_sent else given


def state_of(sweep: Sweep) -> str | None:
    """The query string of the form that repeats it; None where the form lacks a field for something."""
    inputs = sweep.body.get("inputs", {})
    if set(inputs) != set(ARRAYS) or not all(isinstance(inputs[name], dict) for name in ARRAYS):
        return None
    if any(set(inputs[name]) - set(ONE_SHAPE) or "seed" not in inputs[name] for name in ARRAYS):
        return None
    seeds = {name: {"distribution": "normal", **inputs[name]} for name in ARRAYS}
    state: dict[str, Any] = fork.seed_state(seeds) or {}
    if not state or not all(pointer in known(sweep) for pointer in asked(sweep.body)):
        return None
    del state["source"]
    body = {"engine": DEFAULTS["engine"], **sweep.body}
    for name, pointer in POINTERS.items():
        if (value := fork.field_value(body, pointer)) is not None:
            state[name] = value
    state["causal"] = "yes" if state.get("causal") == "true" else "no"
    for name, value in body.get("options", {}).items():
        state[options.control(name)] = options.text_of(value)
    if window := body.get("attention", {}).get("window"):
        state[fields.WINDOW.name] = ranges.text_of(window)
    return with_varied(sweep, state)


def asked(body: Mapping[str, Any]) -> list[str]:
    """Pointers to what a body of a run sets, beside its inputs."""
    found = []
    for name, value in body.items():
        if isinstance(value, dict) and name != "inputs":
            found += [f"/{name}/{inner}" for inner in value]
        elif name != "inputs" and (name, value) != ("return", ["out"]):
            found.append(f"/{name}")
    return found


def known(sweep: Sweep) -> set[str]:
    """What of it the form has fields for."""
    return {
        *POINTERS.values(),
        f"/{fields.WINDOW.varies}",
        *(f"/options/{name}" for name in first_engine(engines_of(sweep)).options),
    }


def engines_of(sweep: Sweep) -> list[str]:
    return list(sweep.vary.get("engine") or [sweep.body.get("engine", "")])


def with_varied(sweep: Sweep, state: dict[str, Any]) -> str | None:
    """The query string of a state with the lists of a sweep in their fields."""
    by_name = {one.varies: one for one in fields.known(first_engine(engines_of(sweep)))}
    by_name["q_len"] = by_name["len"]
    for name, values in sweep.vary.items():
        one = by_name.get(name)
        if one and one.choices is not None:
            state[one.name] = [fields.box_text(value) for value in values]
        elif one:
            state[one.name] = ", ".join(map(ranges.text_of, values))
            if name == "len":
                state.pop("kv_len", None)
        elif OTHER.name in state:
            return None
        else:
            state |= {OTHER.name: name, OTHER_VALUES: json.dumps(values)}
    if sweep.refused:
        state[SKIP] = "1"
    query = urlencode(state, doseq=True)
    return query if len(query) <= MAX_LINK else None
