"""Why decoding waits for memory: bounds against bytes and operations counted by hand."""

import json
import re
from urllib.parse import urlencode

import pytest
from django.http import QueryDict

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.decode_bandwidth import FIGURES, MODELS, SHAPES, Pace, intensity, model_of, pace
from kernels.counts import ITEM_BYTES, softmax_flops
from kernels.sizing.gpus import gpus
from kernels.sizing.memory import Workload
from kernels.sizing.roofline import flops, intensities
from kernels.spec import parse_run
from lab.form.forms import LabForm

PACE, ROOF = FIGURES
LINKS = Links("/page/", "/fragment/", "/lab/")
GB = 1e9


def fact(name: str) -> float:
    return float(FACTS[f"bw-{name}"].text.replace(",", ""))


def values(figure, **state: str) -> dict:
    return figure.data(state)["values"]


def weights_read(batch: int = 1) -> int:
    """Bytes of Llama 3 8B that a step meets: layers, norms and head, and a row of the embedding for each."""
    width, kv, mlp, vocabulary, layers = 4096, 1024, 14_336, 128_256, 32
    layer = 2 * width * width + 2 * width * kv + 3 * width * mlp + 2 * width
    return 2 * (layers * layer + width + vocabulary * width + batch * width)


def cache_read(batch: int, length: int) -> int:
    return batch * length * 2 * 32 * 8 * 128 * 2


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize("length", [1, 8192])
def test_the_least_time_is_the_bytes_over_the_bandwidth(batch: int, length: int) -> None:
    one = pace("llama-3-8b", "h100-sxm", 1, batch, length)
    assert one.weights == pytest.approx(1e3 * weights_read(batch) / 3350e9, rel=1e-12)
    written = cache_read(batch, 1)  # keys and values of the new tokens
    assert one.cache == pytest.approx(1e3 * (cache_read(batch, length) + written) / 3350e9, rel=1e-9)
    assert one.least == max(one.weights + one.cache, one.arithmetic)
    assert one.tokens == pytest.approx(1e3 * batch / one.least)


def test_arithmetic_can_be_the_limit() -> None:
    one = Pace(batch=2, weights=1.0, cache=1.0, arithmetic=4.0)
    assert (one.memory, one.least, one.tokens) == (2.0, 4.0, 500.0)
    busy = values(PACE, batch="512", length="128")
    assert "or more for its arithmetic" in PACE.sentence(busy)


def test_several_cards_share_both_reads() -> None:
    alone, four = (pace("llama-3-70b", "h100-sxm", cards, 8, 4096) for cards in (1, 4))
    assert alone.weights == pytest.approx(4 * four.weights)
    assert alone.cache == pytest.approx(4 * four.cache)


def test_what_does_not_fit_is_said() -> None:
    large = values(PACE, model="llama-3-70b")
    assert "It does not fit into that memory." in PACE.sentence(large)
    assert "does not fit" not in PACE.sentence(values(PACE))
    assert "does not fit" not in PACE.sentence(values(PACE, model="llama-3-70b", cards="2"))


def test_the_sentence_says_bytes_bandwidth_and_rates() -> None:
    told = PACE.sentence(values(PACE, batch="16", cards="2"))
    assert "15.01 GB of weights and 17.18 GB of cache at 6,700 GB/s" in told
    least = (weights_read(16) + cache_read(16, 8193)) / 6700e9
    assert f"{16 / least:,.0f} in all" in told
    assert f"At most {1 / least:,.0f} tokens a second for each" in told


def test_the_table_holds_the_chosen_batch_and_where_figures_are_from() -> None:
    table = PACE.table(values(PACE, batch="7"))
    assert re.findall(r'<th scope="row">(\d+)</th>', table) == ["1", "4", "7", "16", "64", "256"]
    assert "3,350 GB/s and 989 dense TFLOP/s in 16 bits, by stas00/ml-engineering" in table


@pytest.mark.parametrize("batch", [1, 8, 256])
def test_intensity_of_weights_is_the_batch(batch: int) -> None:
    found = intensity("llama-3-8b", batch)
    matrices = weights_read(batch) - 2 * batch * 4096 - 2 * (32 * 2 + 1) * 4096  # no embedding, no norm
    assert found.weights == pytest.approx(batch * matrices / weights_read(batch), rel=1e-12)
    assert found.weights == pytest.approx(batch, rel=1e-3)


@pytest.mark.parametrize(
    ("slug", "group"),
    [("llama-2-7b", 1), ("llama-3-8b", 4), ("llama-2-70b", 8), ("falcon-7b", 71), ("deepseek-v2", 241.78)],
)
def test_intensity_of_attention_is_how_many_share_a_key(slug: str, group: float) -> None:
    assert intensity(slug, 1).cache == pytest.approx(group, rel=1e-4)
    assert intensity(slug, 300).cache == intensity(slug, 1).cache
    longer = intensities(model_of(slug), Workload(length=77, batch=3))
    assert longer.cache == pytest.approx(group, rel=1e-4)


def test_the_latent_of_mla_is_counted_as_it_is_read() -> None:
    operations, numbers = 128 * (2 * (512 + 64) + 2 * 512), 512 + 64
    assert intensity("deepseek-v2", 1).cache == pytest.approx(operations / (2 * numbers))


def test_both_intensities_account_for_all_operations() -> None:
    load = Workload(length=1000, batch=5)
    found = intensities(model_of("llama-3-8b"), load)
    whole = found.weights * weights_read(5) + found.cache * cache_read(5, 1000)
    assert whole == pytest.approx(flops(model_of("llama-3-8b"), load), rel=1e-12)


def test_a_model_without_a_cache_has_no_such_intensity() -> None:
    with pytest.raises(ValueError, match="without a cache"):
        intensities(model_of("mamba-2.8b"), Workload(length=10))


def test_the_roof_is_a_slope_and_a_peak() -> None:
    gpu = gpus()["h100-sxm"]
    assert gpu.attainable(1) == 3350e9
    assert gpu.attainable(gpu.ridge / 2) == pytest.approx(989e12 / 2)
    assert gpu.attainable(1000) == 989e12


def test_the_points_lie_on_the_roof_and_only_one_of_them_moves() -> None:
    def points(rows: str) -> list[tuple[float, float]]:
        series, _x, _y = ROOF.plot(values(ROOF, rows=rows))
        return [one.points[0] for one in series[1:]]

    (weights, attention), (moved, stayed) = points("1"), points("64")
    assert attention == stayed == (pytest.approx(4), pytest.approx(4 * 3.35))
    assert weights == (pytest.approx(1, rel=1e-3), pytest.approx(3.35, rel=1e-3))
    assert moved == (pytest.approx(64, rel=1e-2), pytest.approx(64 * 3.35, rel=1e-2))
    told = ROOF.sentence(values(ROOF, rows="512"))
    assert "the limit at 295. Memory can feed 100\u202f% and 1.35\u202f% of the peak." in told


def test_the_lab_gets_the_heads_that_share_a_key() -> None:
    for slug, group in (("llama-2-7b", "1"), ("falcon-7b", "71")):
        fields = dict(ROOF.lab(values(ROOF, shape=slug)))
        assert (fields["heads"], fields["kv_heads"], fields["q_len"]) == (group, "1", "1")
        form = LabForm.from_link(QueryDict(urlencode(ROOF.lab(values(ROOF, shape=slug)))))
        spec = parse_run(form.body()).spec
        keys_and_values = 2 * 1024 * 64 * ITEM_BYTES[spec.dtype]
        assert softmax_flops(spec) / keys_and_values == int(group) * 2 / ITEM_BYTES[spec.dtype]


def test_every_model_and_card_has_a_bound() -> None:
    for model in MODELS:
        for card in gpus():
            found = PACE.data({"model": model, "gpu": card})
            assert json.loads(json.dumps(found))["ms_at_least"]["least"] > 0
    for shape in SHAPES:
        assert ROOF.view(values(ROOF, shape=shape), LINKS)


def test_facts_follow_from_bytes() -> None:
    weights, cache = weights_read() / GB, cache_read(1, 8192) / GB
    assert fact("weights") == pytest.approx(weights, abs=0.05)
    assert fact("cache") == pytest.approx(cache, abs=5e-3)
    assert fact("hand-sum") == pytest.approx(weights + 16 * cache, abs=5e-3)
    assert fact("equal") == round(weights / cache)
    assert fact("limit") == pytest.approx(3350 / cache, abs=0.5)
    for batch in (1, 16):
        least = (weights + batch * cache) / 3350
        assert fact(f"step-{batch}") == pytest.approx(1e3 * least, abs=0.06)
        assert fact(f"rate-{batch}") == pytest.approx(batch / least, abs=1)
    assert fact("times-tokens") == 8
    all_weights = 2 * 8_030_261_248 / GB  # the published count of parameters
    assert (80 - all_weights) / cache - 1 <= fact("room") <= (80 - all_weights) / cache


def test_an_eighth_of_the_cache_is_no_eighth_of_the_step() -> None:
    weights = 2 * (68_976_648_192 - 32_000 * 8192) / 2039e6  # ms; parameters as published, less the embedding
    mha, gqa = (kv * 2 * 80 * 128 * 2 * 4096 / 2039e6 for kv in (64, 8))
    assert fact("large-weights") == pytest.approx(weights, abs=0.06)
    assert (fact("large-mha"), fact("large-gqa")) == (
        pytest.approx(mha, abs=5e-3),
        pytest.approx(gqa, abs=5e-3),
    )
    for batch in (1, 64):
        gain = (weights + batch * mha) / (weights + batch * gqa)
        assert fact(f"gain-{batch}") == pytest.approx(gain, abs=6e-3)


@pytest.mark.parametrize(
    ("name", "bandwidth", "peak", "ridge"),
    [("a100", 2039, 312, 153), ("h100", 3350, 989, 295), ("h200", 4800, 989, 206), ("b200", 8000, 2250, 281)],
)
def test_facts_of_accelerators(name: str, bandwidth: int, peak: int, ridge: int) -> None:
    assert [fact(f"{name}-{what}") for what in ("bandwidth", "peak", "ridge")] == [bandwidth, peak, ridge]
    least = 1e3 * (weights_read() + cache_read(1, 8192)) / (bandwidth * GB)
    assert fact(f"{name}-step") == pytest.approx(least, abs=0.06)


def test_facts_of_sharing() -> None:
    found = [fact(f"intensity-{name}") for name in ("mha", "gqa", "large", "mqa", "mla")]
    assert found == [1, 4, 8, 71, 242]
    assert fact("h200-gain") == round(4800 / 3350, 2)
    assert fact("ridge") == 295
