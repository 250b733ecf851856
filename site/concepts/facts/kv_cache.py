"""Numbers of the page on the cache of keys and values."""

from functools import partial

from concepts.facts import fact
from concepts.figures.kv_cache import FIGURES, KIB, anew, cached, fields_of
from concepts.figures.past import changes
from kernels.sizing.lengths import score_bytes, writing_cost
from kernels.sizing.memory import weight_bytes
from kernels.sizing.models import read_model
from kernels.sizing.storage import GB, GIB, SIXTEEN

STEP, _WRITING, CALCULATOR = FIGURES
LENGTH = 4096
CARDS = 2 * 80 * GB  # of the accelerators that the weights of Llama 2 70B fit on


WORDS = STEP.controls[0].usual[: STEP.usual["step"]]


@fact("kv-step-without", "d")
def step_without() -> int:
    return anew(WORDS)[-1].scores


@fact("kv-step-with", "d")
def step_with() -> int:
    return cached(WORDS)[-1].scores


@fact("kv-step-kept", "d")
def step_kept() -> int:
    return cached(WORDS)[-1].kept


@fact("kv-changed-far", ".2f")
def changed_far() -> float:
    """The largest change in what is kept of layer 2, when a word is added that every word sees."""
    return float(changes("append", "all", has_rope=True)[1].max())


# -- in sum --------------------------------------------------------------------------------------------------


def _scores(written: int, *, has_cache: bool) -> int:
    """Of one head, from the first token on."""
    return writing_cost(1, written, 1, has_cache=has_cache).pairs // 4


@fact("kv-sum-without", ",")
def sum_without() -> int:
    return _scores(1000, has_cache=False)


@fact("kv-sum-with", ",")
def sum_with() -> int:
    return _scores(1000, has_cache=True)


@fact("kv-sum-ratio", ".0f")
def sum_ratio() -> float:
    return float(sum_without() / sum_with())


# -- bytes ---------------------------------------------------------------------------------------------------


def token_of(slug: str, kv: int | None = None) -> int:
    """Bytes of a token in 16 bits; `kv`: with other heads of keys and values than the model has."""
    one = fields_of(slug)
    fields = {"layers": one.layers, "kv": kv or one.kv, "width": one.width}
    return CALCULATOR.token(CALCULATOR.usual | fields)


def _kib(slug: str, kv: int | None = None) -> float:
    return token_of(slug, kv) / KIB


def _gib(slug: str, length: int, kv: int | None = None) -> float:
    return token_of(slug, kv) * length / GIB


for name, heads in (("mha", 64), ("gqa", None), ("mqa", 1)):
    fact(f"kv-llama2-{name}", ",.0f")(partial(_kib, "llama-2-70b", heads))
fact("kv-llama2-mha-all", ".0f")(partial(_gib, "llama-2-70b", LENGTH, 64))
fact("kv-llama2-gqa-all", ".2f")(partial(_gib, "llama-2-70b", LENGTH))
for slug, short in (("llama-3-8b", "8b"), ("llama-3-70b", "70b")):
    fact(f"kv-{short}", ",.0f")(partial(_kib, slug))
    for length, text in ((LENGTH, "4k"), (8 * LENGTH, "32k"), (32 * LENGTH, "128k")):
        fact(f"kv-{short}-{text}", ".3g")(partial(_gib, slug, length))


@fact("kv-llama2-mqa-mib", ".0f")
def mqa_mib() -> float:
    return 1024 * _gib("llama-2-70b", LENGTH, 1)


@fact("kv-8b-bytes", ",")
def bytes_8b() -> int:
    return token_of("llama-3-8b")


@fact("kv-llama2-weights", ".0f")
def weights() -> float:
    """GB, in 16 bits."""
    return weight_bytes(read_model("llama-2-70b").model, SIXTEEN) / GB


def _fit(kv: int | None) -> int:
    """Sequences beside the weights on two accelerators."""
    free = CARDS - weight_bytes(read_model("llama-2-70b").model, SIXTEEN)
    return free // (token_of("llama-2-70b", kv) * LENGTH)


@fact("kv-fit-mha", "d")
def fit_mha() -> int:
    return _fit(64)


@fact("kv-fit-gqa", "d")
def fit_gqa() -> int:
    return _fit(None)


@fact("kv-if-weights", ".0f")
def if_weights() -> float:
    """GiB of the attention weights of Llama 2 70B, a square for each head and layer, in 16 bits."""
    return fields_of("llama-2-70b").layers * score_bytes(LENGTH, 64) / GIB
