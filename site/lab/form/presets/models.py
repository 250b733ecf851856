"""The attention of models that are known by name, as long as the lab can run it: from their configs alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.sizing.layers import Attention, LatentAttention
from kernels.sizing.models import NamedModel, models, read_model
from kernels.spec import SpecError, parse_run
from lab import units
from lab.form.forms import LabForm
from lab.form.presets import Preset, State
from workers import limits

LENGTHS = (512, 256, 128, 64, 32, 16)  # that are tried, the longest first
SHARE = 0.4  # of the time that anybody may have: a preset is no place to wait
QUICK = {"warmup": "0", "iters": "1"}
KINDS = {
    "full_attention": gettext_lazy("causal"),
    "sliding_attention": gettext_lazy("causal, in a window"),
    "chunked_attention": gettext_lazy("causal, in chunks"),
    "bidirectional_attention": gettext_lazy("in both directions"),
    "mla": gettext_lazy("latents (MLA)"),
}


@dataclass(frozen=True)
class Shape:
    """A row of the table: the model, a kind of its layers, and how long a text its link has."""

    model: NamedModel
    mixer: Attention | LatentAttention
    context: int | None
    length: int
    changed: str  # what is not as in the model
    preset: Preset

    @property
    def kind(self) -> Any:
        return KINDS.get(self.mixer.kind, self.mixer.kind)

    @property
    def context_text(self) -> str:
        return units.whole(self.context) if self.context else ""

    @property
    def kv_heads(self) -> str:
        return str(self.mixer.kv_heads) if isinstance(self.mixer, Attention) else _("one latent")

    @property
    def dim(self) -> str:
        if isinstance(self.mixer, Attention):
            return str(self.mixer.head_dim)
        return f"{self.mixer.nope_dim} + {self.mixer.rope_dim}"


@cache
def shapes() -> tuple[Shape, ...]:
    """Every layer of attention of every model that fits, in the order of the table."""
    return tuple(shape for model in models().values() for shape in of_model(model))


def of_model(model: NamedModel) -> Iterator[Shape]:
    """Its kinds of attention: a decoder's, and of those with windows each."""
    read = read_model(model.slug).model
    layers = read.layers or read.encoder
    mixers = dict.fromkeys(
        mixer
        for layer in layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention | LatentAttention) and not getattr(mixer, "is_cross", False)
    )
    for number, mixer in enumerate(mixers):
        found = first_that_fits(model, mixer, read.context)
        if found:
            length, state, changed = found
            preset = Preset(f"{model.slug}-{number}", model.title, "", state)
            yield Shape(model, mixer, read.context, length, ", ".join(changed), preset)


def first_that_fits(
    model: NamedModel, mixer: Attention | LatentAttention, context: int | None
) -> tuple[int, State, list[str]] | None:
    """With the longest text that fits; and with fewer heads where no text fits with all."""
    for heads in (mixer.heads, mixer.heads // 2, mixer.heads // 4):
        for length in LENGTHS:
            state, changed = state_of(model, replace(mixer, heads=heads), length)
            if heads != mixer.heads:
                changed = [*changed, _("{heads} of {all} heads").format(heads=heads, all=mixer.heads)]
            if fits(state):
                return length, state, changed
    return None


def fits(state: State) -> bool:
    """Whether a run of it is accepted, and short."""
    form = LabForm.from_link(state)
    try:
        spec = parse_run(form.body()).spec
        limits.admit(spec, SHARE * settings.RUN_BUDGET_ANONYMOUS)
    except (SpecError, limits.Refused):
        return False
    return not form.errors


def state_of(model: NamedModel, mixer: Attention | LatentAttention, length: int) -> tuple[State, list[str]]:
    """The form's fields, and what of them is not as in the model."""
    if isinstance(mixer, LatentAttention):
        state: State = {
            "engine": "mla", "heads": mixer.heads, "q_len": length, "d_nope": mixer.nope_dim,
            "d_rope": mixer.rope_dim, "d_c": mixer.kv_rank, "d_v": mixer.v_head_dim, "causal": "on",
        }  # fmt: skip
        return texts(state | rope_of(model.config, mixer) | QUICK), []
    state = {
        "source": "seed", "heads": mixer.heads, "q_len": length, "head_dim": mixer.head_dim,
        "returns": ["out", "lse"],
    }  # fmt: skip
    if mixer.kv_heads != mixer.heads:
        state["kv_heads"] = mixer.kv_heads
    if mixer.v_head_dim != mixer.head_dim:
        state["v_head_dim"] = mixer.v_head_dim
    if mixer.is_causal:
        state["causal"] = "on"
    window, changed = window_of(mixer, length)
    state |= window
    if model.config.get("model_type") == "t5":  # which folds 1/√d into its weights
        state["scale"] = "1"
        changed.append(_("without its bias by distance"))
    if cap := model.config.get("attn_logit_softcapping"):
        state["softcap"] = f"{cap:g}"
    if scalar := model.config.get("query_pre_attn_scalar"):
        state["scale"] = repr(float(scalar) ** -0.5)
    if mixer.sinks:
        state["sinks"] = ", ".join("0" for _head in range(mixer.heads))
    if has_alibi(model.config):
        state["alibi_slopes"] = "auto"
    return texts(state | rope_of(model.config, mixer) | QUICK), changed


def window_of(mixer: Attention, length: int) -> tuple[State, list[str]]:
    """The fields of a window, which counts the token itself; one that is longer than the text becomes an
    eighth of it."""
    if mixer.window is None:
        return {}, []
    window = mixer.window if mixer.window < length else max(1, length // 8)
    said = _("window {full:,} → {window:,}").format(full=mixer.window, window=window)
    changed = [said] if window != mixer.window else []
    if mixer.is_chunked:
        return {"pattern": "chunked", "pattern_size": window}, changed
    return {"window_left": window - 1}, changed


def has_alibi(config: Mapping[str, Any]) -> bool:
    inner = config.get("attn_config") or {}
    return bool(config.get("alibi") or inner.get("alibi") or config.get("model_type") == "bloom")


def rope_of(config: Mapping[str, Any], mixer: Attention | LatentAttention) -> State:
    """The rotation of a config, where it has one; its scaling by the names that the spec has too."""
    theta, scaling = config.get("rope_theta"), dict(config.get("rope_scaling") or {})
    if theta is None or has_alibi(config):
        return {}
    if isinstance(mixer, Attention) and mixer.window is not None and "rope_local_base_freq" in config:
        theta, scaling = config["rope_local_base_freq"], {}  # layers with a window have a base of their own
    pairing = "interleaved" if isinstance(mixer, LatentAttention) else "half"
    state: State = {"rope": pairing, "rope_theta": f"{theta:g}"}
    if kind := scaling.pop("rope_type", scaling.pop("type", None)):
        state["rope_scaling"] = kind
        state |= {f"scaling_{name}": value for name, value in scaling.items()}
    return state


def texts(state: State) -> State:
    """As links have it."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return value
        return str(value).lower() if isinstance(value, bool) else str(value)

    return {name: text(value) for name, value in state.items()}
