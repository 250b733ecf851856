"""From a run back to what was asked for: the REST body that repeats it, and the form that edits it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from kernels.arrays import generate, to_jsonable
from kernels.registry import ENGINES
from kernels.spec import Options, RunSpec
from kernels.spec.declared import with_defaults
from lab import matrices
from lab.form import offers, options
from lab.form.forms import POINTERS
from lab.form.offers import ARRAYS
from lab.form.parameters import is_drawn
from workers import artifacts
from workers.models import Run

MAX_PASTED = 4_096  # numbers in the three text boxes together
PLACEHOLDER = "UPLOAD_ID"


def body_of(run: Run) -> dict[str, Any]:
    """The body of `POST /api/v1/runs` that repeats `run`; arrays too many to type are left as uploads."""
    spec = RunSpec.from_dict(run.spec)
    body = beyond_the_defaults(spec)
    sent = submitted(run, spec)
    inputs = {name: array_of(name, given, sent) for name, given in run.spec["inputs"].items()}
    return {"engine": spec.engine, **body, "inputs": inputs}


def beyond_the_defaults(spec: RunSpec) -> dict[str, Any]:
    """What of a spec its engine would not do anyway; without the inputs."""
    declared = ENGINES[spec.engine].options if spec.engine in ENGINES else {}  # a run may outlive an engine
    usual = with_defaults(Options(), declared)
    return differences(spec.to_dict(), RunSpec(spec.engine, spec.inputs, options=usual).to_dict())


def differences(value: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """What of a nested object is not as it would be anyway."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if item == default.get(name):
            continue
        nested = isinstance(item, dict) and isinstance(default.get(name), dict)
        found[name] = differences(item, default[name]) if nested else item
    return found


def submitted(run: Run, spec: RunSpec) -> dict[str, np.ndarray]:
    """The arrays that came with the request, if they are few enough to be typed; else nothing."""
    sent = [given for given in spec.inputs.values() if given.source != "seed"]
    if not sent or sum(given.elements for given in sent) > MAX_PASTED:
        return {}
    return artifacts.load_submitted(run)


def array_of(name: str, given: Mapping[str, Any], sent: Mapping[str, np.ndarray]) -> Any:
    """The ARRAY of the contract for one input."""
    if given["source"] == "seed":
        return {key: given[key] for key in ("seed", "shape", "distribution")}
    if name in sent:
        return tidy(to_jsonable(sent[name]))
    return {"upload": PLACEHOLDER, "name": name}


def tidy(values: Any) -> Any:
    """Whole numbers without their ".0", as a person would type them."""
    if isinstance(values, list):
        return [tidy(value) for value in values]
    return int(values) if isinstance(values, float) and values.is_integer() and abs(values) < 1e15 else values


# --- The form -------------------------------------------------------------------------------------


def state_of(run: Run) -> tuple[dict[str, Any], list[str]]:
    """The form's state that repeats `run`, and sentences on what could not be carried over."""
    body = body_of(run)
    state = {
        name: value for name, pointer in POINTERS.items() if (value := field_value(body, pointer)) is not None
    }
    state["returns"] = body.get("return", ["out"])
    for name, value in body.get("options", {}).items():
        state[options.control(name)] = options.text_of(value)
    inputs, notes = input_state(body["inputs"], run.spec["dtype"])
    return {**state, **inputs}, [*notes, *beyond_the_form(body)]


def field_value(body: Mapping[str, Any], pointer: str) -> Any:
    value: Any = body
    for part in pointer.strip("/").split("/"):
        value = value.get(part) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, list) else str(value)


def input_state(inputs: Mapping[str, Any], dtype: str) -> tuple[dict[str, Any], list[str]]:
    if not set(ARRAYS) <= set(inputs):
        return {}, [_("The inputs of this engine cannot be edited in the form.")]
    values = {name: inputs[name] for name in ARRAYS}
    if any(isinstance(value, dict) and "upload" in value for value in values.values()):
        note = _(
            "The matrices of that run are too large for text boxes (more than {limit:,} numbers). "
            "To use them again, download its inputs.npz and upload it here."
        )
        return {"source": "upload"}, [note.format(limit=MAX_PASTED)]
    all_seeded = all(isinstance(value, dict) for value in values.values())
    if all_seeded and (seeded := seed_state(values)):
        return seeded, []
    texts = {name: as_text(name, value, dtype) for name, value in values.items()}
    return {"source": "matrices", **texts}, []


def seed_state(values: Mapping[str, Any]) -> dict[str, str] | None:
    """The seed form's fields, when one seed and fitting shapes describe all three arrays."""
    q, k, v = ([1] * (4 - len(values[name]["shape"])) + values[name]["shape"] for name in ARRAYS)
    alike = len({(value["seed"], value["distribution"]) for value in values.values()}) == 1
    if not alike or q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return None
    fields = {"batch": q[0], "heads": q[1], "q_len": q[2], "head_dim": q[3], "seed": values["q"]["seed"]}
    if k[1] != q[1]:
        fields["kv_heads"] = k[1]
    if k[2] != q[2]:
        fields["kv_len"] = k[2]
    if v[3] != q[3]:
        fields["v_head_dim"] = v[3]
    texts = {name: str(value) for name, value in fields.items()}
    return {"source": "seed", "distribution": values["q"]["distribution"], **texts}


def as_text(name: str, value: Any, dtype: str) -> str:
    """A matrix to paste; a seeded one (beside others that are not) is written out."""
    if isinstance(value, dict):
        array = generate(name, value["seed"], tuple(value["shape"]), value["distribution"], dtype)
        value = to_jsonable(array.astype(np.float64))
    return matrices.to_text(value)


def beyond_the_form(body: Mapping[str, Any]) -> list[str]:
    """What that run asked for and the form has no field for: never dropped in silence."""
    engine = ENGINES[body["engine"]]
    pointers = set(POINTERS.values()) | {f"/inputs/{name}" for name in ARRAYS}
    pointers |= {f"/options/{name}" for name in engine.options}
    asked = [f"/{name}/{key}" for name, value in body.items() if isinstance(value, dict) for key in value]
    pointers |= {f"/inputs/{name}" for name, array in body["inputs"].items() if is_drawn(name, array)}
    missing = [pointer.rpartition("/")[2] for pointer in asked if pointer not in pointers]
    missing += [name for name in body.get("return", []) if name not in offers.results(engine)]
    if not missing:
        return []
    note = _("That run also sets {names}, which this form has no field for: use its curl command instead.")
    return [note.format(names=", ".join(missing))]
