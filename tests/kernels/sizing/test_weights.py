"""Parameters and their bytes, against what the classes of Hugging Face transformers 5.24 hold and against
what the authors published."""

import pytest

from kernels.sizing.hf_config import read_config
from kernels.sizing.models import read_model
from kernels.sizing.storage import WEIGHT_DTYPES, readable, weight_format
from kernels.sizing.weights import weigh
from tests.kernels.sizing import configs

GIB = 2**30

# Counted over `parameters()` of each class, made from the same config on torch's meta device.
PARAMS = {
    "bert-base": 109_482_240, "bert-large": 335_141_888,
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "gpt3": 174_604_259_328, "t5-base": 222_903_552, "t5-11b": 11_307_321_344,
    "llama-7b": 6_738_415_616, "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "mistral-7b-v0.1": 7_241_732_096, "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_630_071_296,
    "falcon-7b": 6_921_720_704, "falcon-40b": 41_303_293_952, "falcon-180b": 178_557_088_768,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360, "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "gemma-2b": 2_506_172_416, "gemma-2-9b": 9_241_705_984, "gemma-2-27b": 27_227_128_320,
    "gemma-3-4b": 3_880_099_328, "gemma-3-27b": 27_009_002_240,
    "deepseek-v2": 235_741_434_880, "deepseek-v3": 671_026_404_352,
    "gpt-oss-20b": 20_914_757_184, "gpt-oss-120b": 116_829_156_672,
    "bloom": 176_247_271_424, "mpt-7b": 6_649_286_656, "mpt-30b": 29_957_200_896,
    "jamba-v0.1": 51_570_323_328, "mamba-2.8b": 2_768_345_600,
}  # fmt: skip
# As tables of the field print them, in units of 10⁹ but for BERT and GPT-2.
PRINTED = {
    "gpt2-xl": "1.558", "gpt3": "174.6", "llama-2-7b": "6.74", "llama-65b": "65.3", "llama-2-13b": "13.0",
    "llama-2-70b": "69.0", "llama-3-8b": "8.03", "llama-3-70b": "70.6", "llama-3.1-405b": "405.9",
    "mistral-7b-v0.1": "7.24", "mixtral-8x7b": "46.7", "mixtral-8x22b": "140.6", "falcon-7b": "6.9",
    "falcon-40b": "41.3", "falcon-180b": "178.6", "qwen2.5-7b": "7.62", "qwen2.5-72b": "72.7",
    "qwen3-8b": "8.19", "qwen3-32b": "32.8", "gemma-2-9b": "9.24", "gemma-2-27b": "27.2",
    "gemma-3-4b": "3.88", "gemma-3-27b": "27.0", "bloom": "176.2", "mpt-7b": "6.65", "mpt-30b": "30.0",
    "gpt-oss-20b": "20.9", "deepseek-v3": "671", "deepseek-v2": "236",
}  # fmt: skip


@pytest.mark.parametrize(("slug", "params"), PARAMS.items())
def test_every_parameter_is_counted(slug, params):
    assert weigh(read_model(slug).model).params == params


@pytest.mark.parametrize(("slug", "printed"), PRINTED.items())
def test_the_tables_of_the_field_round_to_the_same(slug, printed):
    digits = len(printed.partition(".")[2])
    assert f"{weigh(read_model(slug).model).params / 1e9:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("slug", "printed"),
    [("mixtral-8x7b", "12.9"), ("qwen3-30b-a3b", "3.4"), ("qwen3-235b-a22b", "22.2"), ("llama-3-8b", "8.0")],
)
def test_a_token_meets_only_its_experts(slug, printed):
    assert f"{weigh(read_model(slug).model).active_params / 1e9:.1f}" == printed


@pytest.mark.parametrize(("slug", "gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_mxfp4_checkpoints_are_as_large_as_published(slug, gib):
    """arXiv:2508.10925, table 1: the experts are in 4 bits, everything else in 16."""
    read = read_model(slug)
    assert round(weigh(read.model, read.stored).bytes / GIB, 1) == gib


def test_an_fp8_checkpoint_has_a_scale_for_each_block():
    read = read_config(configs.DEEPSEEK_V3)
    weights = weigh(read.model, read.stored)
    one = read.stored.matrix(2048, 7168)  # one matrix of one expert
    assert one == 2048 * 7168 + 4 * 16 * 56
    assert weights.parts["embedding"] == 2 * 129280 * 7168  # and embeddings are not quantised
    assert 671e9 < weights.bytes < 675e9


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("float32", 32),
        ("float16", 16),
        ("bfloat16", 16),
        ("fp8_e4m3", 8 + 32 / 4096),
        ("int8", 8 + 32 / 4096),
        ("int4", 4 + 20 / 128),
        ("nf4", 4 + 32 / 64),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
    ],
)
def test_bits_to_a_number_with_its_share_of_the_scales(dtype, bits):
    assert weight_format(dtype).matrix(1024, 4096) * 8 == bits * 1024 * 4096


def test_groups_of_another_size():
    assert weight_format("int4", 32).matrix(8, 100) == 8 * 50 + 8 * 4 * 20 // 8  # 4 groups: the last is short
    assert weight_format("int4", 10**6).matrix(8, 100) == 8 * 50 + 8 * 20 // 8


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_only_matrices_of_the_layers_are_quantised(dtype):
    model = read_model("llama-3-8b").model
    full, stored = weigh(model), weigh(model, weight_format(dtype))
    assert stored.params == full.params
    for part in ("embedding", "head", "norms"):
        assert stored.parts[part] == full.parts[part] * (2 if dtype == "float32" else 1)
    assert sum(stored.parts.values()) == stored.bytes


def test_a_tied_head_weighs_nothing():
    tied, untied = ({**configs.LLAMA_2_70B, "tie_word_embeddings": tied} for tied in (True, False))
    apart = weigh(read_config(untied).model).params - weigh(read_config(tied).model).params
    assert apart == 32000 * 8192


def test_gb_and_gib_are_both_said():
    assert readable(5 * GIB // 4) == "1.25 GiB (1.34 GB)"
    assert readable(160 * 2**20) == "160 MiB (168 MB)"
    assert readable(320 * 1024) == "320 KiB"
    assert readable(7) == "7 bytes"
    assert readable(137_953_296_384) == "128 GiB (138 GB)"
    assert readable(2**60) == "1,048,576 TiB (1,152,922 TB)"
