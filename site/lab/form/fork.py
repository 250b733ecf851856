"""From a run back to what was asked for: the REST body that repeats it, and the form that edits it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from kernels.arrays import to_jsonable
from kernels.registry import ENGINES
from kernels.spec import Options, RunSpec
from kernels.spec.declared import with_defaults
from kernels.spec.families import PLAIN, Family
from kernels.spec.run import LENGTHS
from lab.form import given, offers, options, settings, texts
from lab.form.forms import LabForm
from lab.form.offers import ARRAYS
from lab.sharing import snippets
from workers import artifacts
from workers.models import Run

MAX_PASTED = 4_096  # numbers in all text boxes together
PLACEHOLDER = snippets.PLACEHOLDER


def body_of(run: Run, most: int = MAX_PASTED) -> dict[str, Any]:
    """The body of `POST /api/v1/runs` that repeats `run`. Arrays of more than `most` numbers together are
    left as uploads; lengths, which no file can give, never are."""
    spec = RunSpec.from_dict(run.spec)
    body = beyond_the_defaults(spec)
    sent = submitted(run, spec, most)
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


def submitted(run: Run, spec: RunSpec, most: int) -> dict[str, np.ndarray]:
    """The arrays that came with the request, if they are few enough to be typed; else the lengths alone."""
    sent = {name: given.elements for name, given in spec.inputs.items() if given.source != "seed"}
    if not sent:
        return {}
    arrays = artifacts.load_submitted(run)
    if sum(count for name, count in sent.items() if name not in LENGTHS) <= most:
        return arrays
    return {name: array for name, array in arrays.items() if name in LENGTHS}


def array_of(name: str, described: Mapping[str, Any], sent: Mapping[str, np.ndarray]) -> Any:
    """The ARRAY of the contract for one input."""
    if described["source"] == "seed":
        return {key: described[key] for key in ("seed", "shape", "distribution")}
    # Of nothing, lists would not say how long the other axes are.
    if name in sent and name not in LENGTHS and 0 in described["shape"]:
        return {"b64": "", "dtype": "float32", "shape": described["shape"]}
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
    return state_of_body(body_of(run), RunSpec.from_dict(run.spec))


def state_of_body(body: Mapping[str, Any], spec: RunSpec) -> tuple[dict[str, Any], list[str]]:
    """The same of the body of a run, which is known as `spec`."""
    state: dict[str, Any] = settings_state(body)
    state["returns"] = list(body.get("return", ["out"]))
    for name, value in body.get("options", {}).items():
        state[options.control(name)] = texts.text_of(value)
    source, notes = source_state(body, spec)
    state |= source
    if state["source"] == "seed" and state["layout"] == "packed":
        state = {name: text for name, text in state.items() if name not in ("num_heads", "num_kv_heads")}
    return state | beside_state(body, spec, state), [*notes, *beyond_the_form(body)]


def beyond_the_form(body: Mapping[str, Any]) -> list[str]:
    """What a run asked for that there is no longer: never dropped in silence."""
    engine = ENGINES.get(body["engine"])
    missing = [] if engine else [body["engine"]]
    missing += [name for name in body.get("options", {}) if engine and name not in engine.options]
    missing += [name for name in body.get("return", []) if engine and name not in engine.returns]
    note = _("That run also sets {names}, which this form has no field for: use its curl command instead.")
    return [note.format(names=", ".join(missing))] if missing else []


def settings_state(body: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting that a body has, as its control has it."""
    kinds = {
        "pattern": settings.get(body, "/attention/pattern/type") or "",
        "rope_scaling": settings.get(body, "/attention/rope/scaling/type") or "",
    }
    found = {setting.name: field_value(body, setting.pointer) for setting in settings.chosen(kinds)}
    begins = ("pattern_", "scaling_")  # with something, unless it is said to be empty
    return {name: text or "" for name, text in found.items() if text is not None or name.startswith(begins)}


def field_value(body: Mapping[str, Any], pointer: str) -> str | None:
    """What a body says at a pointer, as a control has it; None where it says nothing."""
    value = settings.get(body, pointer)
    return None if value is None else texts.text_of(value)


def source_state(body: Mapping[str, Any], spec: RunSpec) -> tuple[dict[str, Any], list[str]]:
    """Where q, k and v, or what is in their place, come from."""
    inputs = body["inputs"]
    if any(isinstance(array, dict) and array.get("upload") == PLACEHOLDER for array in inputs.values()):
        note = _(
            "The matrices of that run are too large for text boxes (more than {limit:,} numbers). "
            "To use them again, download its inputs.npz and upload it here."
        )
        source = "upload" if spec.family is PLAIN else source_of(spec.family)
        return {"source": source, "layout": ""}, [note.format(limit=MAX_PASTED)]
    if spec.family is not PLAIN:
        return family_state(inputs, spec), []
    heads = (spec.attention.num_heads, spec.attention.num_kv_heads)
    seeded = None if spec.is_paged else seed_state(inputs, *heads)
    pasted = {name: texts.text_of(inputs[name]) for name in ARRAYS}
    return seeded or {"source": "matrices", "layout": "", **pasted}, []


def source_of(family: Family) -> str:
    return next(source for source, known in offers.FAMILIES.items() if known is family)


def seed_state(
    inputs: Mapping[str, Any], num_heads: int | None = None, num_kv_heads: int | None = None
) -> dict[str, str] | None:
    """The seed form's fields, when one seed and fitting shapes describe all three arrays; of rows that hold
    all their heads, with their numbers."""
    arrays = [inputs[name] for name in ARRAYS]
    if not all(isinstance(array, dict) and "seed" in array for array in arrays):
        return None
    packed = num_heads is not None
    heads = (num_heads, num_kv_heads or num_heads, num_kv_heads or num_heads)
    q, k, v = (
        given.as_four(array["shape"], count, is_packed=packed)
        for array, count in zip(arrays, heads, strict=True)
    )
    alike = len({(array["seed"], array["distribution"], len(array["shape"])) for array in arrays}) == 1
    if not alike or q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3]:
        return None
    fields = {"batch": q[0], "heads": q[1], "q_len": q[2], "head_dim": q[3], "seed": arrays[0]["seed"]}
    if k[1] != q[1] or num_kv_heads is not None:
        fields["kv_heads"] = k[1]
    if k[2] != q[2]:
        fields["kv_len"] = k[2]
    if v[3] != q[3]:
        fields["v_head_dim"] = v[3]
    layout = "packed" if packed else {4: "", 3: "heads", 2: "plain"}[len(arrays[0]["shape"])]
    shown = {name: str(value) for name, value in fields.items()}
    return {"source": "seed", "layout": layout, "distribution": arrays[0]["distribution"], **shown}


def family_state(inputs: Mapping[str, Any], spec: RunSpec) -> dict[str, Any]:
    """The lengths of axes of what is in the place of q, k and v, and the seed of the first that has one."""
    family = spec.family
    shapes = {name: spec.inputs[name].shape for name in family.axes if name in spec.inputs}
    state: dict[str, Any] = {
        "source": source_of(family),
        "layout": {4: "", 3: "heads", 2: "plain"}[spec.rank],
    }
    for axis, length in family.lengths(shapes).items():
        state[given.AXIS_FIELDS.get(axis, axis)] = str(length)
    drawn = [array for name, array in inputs.items() if name in family.axes and isinstance(array, dict)]
    if drawn:
        state |= {"seed": str(drawn[0]["seed"]), "distribution": drawn[0]["distribution"]}
    return state


def beside_state(body: Mapping[str, Any], spec: RunSpec, state: Mapping[str, Any]) -> dict[str, str]:
    """The arrays that have a control of where they come from: drawn, where the form would draw the same."""
    inputs = body["inputs"]
    beside = [name for name in inputs if spec.family is not PLAIN or name not in ARRAYS]
    found: dict[str, str] = {}
    if "past_key" in inputs:
        found["past_len"] = str(spec.inputs["past_key"].shape[-2])
    if spec.family is PLAIN and "seed" not in state:
        drawn = [inputs[name] for name in beside if isinstance(inputs[name], dict)]
        seeds = [str(array["seed"]) for array in drawn if "seed" in array]
        found |= {"seed": seeds[0]} if seeds else {}
    form = LabForm.from_link({**state, **found})
    around = form.surroundings(body, inputs)
    for name in beside:
        if isinstance(inputs[name], dict) and inputs[name] == around.drawn(name):
            found |= {given.how(name): "seed", given.box(name): ""}
        elif isinstance(inputs[name], dict) and "upload" in inputs[name]:
            found |= {given.how(name): "file", given.box(name): ""}
        else:
            found |= {given.how(name): "text", given.box(name): texts.text_of(inputs[name])}
    return found
