"""The models that are known by name, in one table: their fields, and what follows from them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, layer_run
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Values
from concepts.figures.tables import Column, Table, number, ways
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.layers import Attention, LatentAttention, Mixer, Model
from kernels.sizing.models import NamedModel, models, read_model
from kernels.sizing.storage import GIB, cache_format
from kernels.sizing.weights import Weights, weigh

KINDS = {
    "full_attention": gettext_lazy("full"),
    "bidirectional_attention": gettext_lazy("both ways"),
    "cross_attention": gettext_lazy("cross"),
    "linear_attention": gettext_lazy("linear"),
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
}
LEARNED, BUCKETS, ALIBI = ("bert", "gpt2"), ("t5",), ("bloom", "mpt")


@dataclass(frozen=True)
class Shape:
    """A row: a model, its layers, and what they weigh and keep."""

    named: NamedModel
    model: Model
    weights: Weights
    token_bytes: int
    cache_bytes: int

    @property
    def mixers(self) -> list[Mixer]:
        return [mixer for layer in self.model.layers for mixer in layer.mixers]

    @property
    def attention(self) -> Attention | LatentAttention | None:
        first = layer_run.mixer_of(self.model)
        return first if isinstance(first, Attention | LatentAttention) else None

    @property
    def heads(self) -> int | None:
        return self.attention.heads if self.attention else None

    @property
    def kv_heads(self) -> int | None:
        return self.attention.kv_heads if isinstance(self.attention, Attention) else None

    @property
    def head_dim(self) -> int | None:
        if isinstance(self.attention, LatentAttention):
            return self.attention.nope_dim + self.attention.rope_dim
        return self.attention.head_dim if self.attention else None

    @property
    def kinds(self) -> str:
        """How many layers of which kind, in the order in which they first occur."""
        counts = Counter(kind(mixer) for mixer in self.mixers)
        return ", ".join(f"{count} {words}" for words, count in counts.items())


def kind(mixer: Mixer) -> str:
    if isinstance(mixer, LatentAttention):
        return _("latent (%(rank)d + %(rope)d)") % {"rank": mixer.kv_rank, "rope": mixer.rope_dim}
    if isinstance(mixer, Attention) and mixer.window is not None:
        return _("window of %(window)s") % {"window": f"{mixer.window:,}"}
    return str(KINDS[mixer.kind])


def positions(config: Mapping[str, Any]) -> str:
    """How a model tells positions apart, from its config."""
    model_type = config["model_type"]
    if model_type in LEARNED:
        return _("learned")
    if model_type in BUCKETS:
        return _("relative, %(count)d buckets") % {"count": config["relative_attention_num_buckets"]}
    if model_type in ALIBI:
        return "ALiBi"
    base = config.get("rope_theta")
    if base is None:
        return _("none") if model_type in ("jamba", "mamba") else "RoPE"
    return _("RoPE, base %(base)s%(scaled)s") % {
        "base": f"{base:,.0f}",
        "scaled": scaling(config.get("rope_scaling") or {}),
    }


def scaling(told: Mapping[str, Any]) -> str:
    name = {"linear": "PI", "yarn": "YaRN", "llama3": "Llama 3"}.get(told.get("rope_type", ""), "")
    return f", {name} ×{told['factor']:g}" if name else ""


@lru_cache(maxsize=64)
def shapes(length: int, dtype: str) -> tuple[Shape, ...]:
    return tuple(_shape(slug, length, dtype) for slug in models())


def _shape(slug: str, length: int, dtype: str) -> Shape:
    model, stored = read_model(slug).model, cache_format(dtype)
    kept = kv_cache(model, stored, length)
    return Shape(models()[slug], model, weights_of(slug), kept.bytes_per_token, kept.bytes)


@cache
def weights_of(slug: str) -> Weights:
    return weigh(read_model(slug).model)


class ModelTable(Table[Shape]):
    name = "models"
    title = gettext_lazy("The figure: the shapes of models")
    caption = gettext_lazy("Models, their shapes, and what they keep of each token")
    columns = (
        Column(
            "params",
            gettext_lazy("parameters"),
            lambda row: row.weights.params,
            lambda row: f"{row.weights.params / 1e9:.2f}",
            note="10⁹",
        ),
        Column(
            "token",
            gettext_lazy("cache of a token"),
            lambda row: row.token_bytes,
            lambda row: number(row.token_bytes / 1024),
            note="KiB",
        ),
        Column(
            "cache",
            gettext_lazy("cache of n tokens"),
            lambda row: row.cache_bytes,
            lambda row: f"{row.cache_bytes / GIB:,.2f}",
            note="GiB",
        ),
        Column("layers", gettext_lazy("layers"), lambda row: len(row.model.layers)),
        Column("width", gettext_lazy("width"), lambda row: row.model.hidden),
        Column("heads", gettext_lazy("query heads"), lambda row: row.heads),
        Column("kv", gettext_lazy("heads of keys and values"), lambda row: row.kv_heads),
        Column("dim", gettext_lazy("numbers a head"), lambda row: row.head_dim),
        Column("kinds", gettext_lazy("kinds of layers"), lambda row: row.kinds),
        Column("positions", gettext_lazy("positions"), lambda row: positions(row.named.config)),
        Column(
            "context", gettext_lazy("context"), lambda row: row.model.context, note=gettext_lazy("tokens")
        ),
        Column("vocab", gettext_lazy("vocabulary"), lambda row: row.model.vocab),
        Column(
            "active",
            gettext_lazy("used for a token"),
            lambda row: row.weights.active_params,
            lambda row: f"{row.weights.active_params / 1e9:.2f}",
            note="10⁹",
        ),
        Column("said", gettext_lazy("as published"), lambda row: row.named.published_params or None),
        Column("source", gettext_lazy("source"), lambda row: row.named.source),
    )
    sorted_at_first = ("token", True)
    extra = (
        Number("n", gettext_lazy("Tokens, n"), 4096, 1, 1_048_576, is_log=True),
        Choice(
            "cached",
            gettext_lazy("Bits of the cache"),
            "float16",
            (("float16", "16"), ("fp8_e4m3", "8"), ("int4", "4")),
        ),
    )

    def all_rows(self, values: Values) -> Sequence[Shape]:
        return shapes(values["n"], values["cached"])

    def named(self, row: Shape) -> str:
        return row.named.title

    def has(self, row: Shape, word: str) -> bool:
        return word in row.named.slug or word in row.named.note.casefold() or super().has(row, word)

    def first_head(self) -> str:
        return _("model")

    def head(self, row: Shape, links: Links) -> SafeString:
        """Its name asks whether it fits; beneath it, one of its layers in the lab."""
        slug, title = row.named.slug, row.named.title
        run = urlencode(layer_run.fields(slug), safe="[],")
        return format_html(
            '<a href="{}?model={}#fit">{}</a>{}{}',
            reverse("concepts:concept", args=["inference-memory"]),
            slug,
            title,
            ways((f"{links.lab}?{run}", _("Run a layer of %(model)s") % {"model": title}, _("run"))),
            format_html("<small>{}</small>", row.named.note) if row.named.note else "",
        )


FIGURE = ModelTable()
