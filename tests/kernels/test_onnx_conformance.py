"""Every Attention case of ONNX on every engine: passed, or refused by name; see docs/onnx.md."""

import pytest

from tests.kernels.onnx_cases import onnx_cases
from tests.kernels.onnx_table import ENGINES, PAGE, PASSED, table, verdict

COMPLETE = ("reference", "eager")


def test_there_are_93_cases() -> None:
    """A filter that is too strict would pass everything."""
    assert len(onnx_cases()) == 93
    dtypes = [case.dtype for case in onnx_cases().values()]
    assert {dtype: dtypes.count(dtype) for dtype in set(dtypes)} == {
        "float32": 82,
        "float16": 6,
        "bfloat16": 5,
    }
    fields = {name for case in onnx_cases().values() for name in (*case.body["inputs"], *case.expected)}
    assert {"attn_mask", "past_key", "kv_lens", "present_value", "scores", "softcapped_scores",
            "masked_scores", "weights"} <= fields  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", onnx_cases())
def test_case(name: str, engine: str) -> None:
    found = verdict(name, engine)
    assert found == PASSED or (engine not in COMPLETE and found.startswith("refused: ")), found


def test_the_page_shows_what_the_engines_do() -> None:
    shown = table()
    print(shown)
    assert PAGE.read_text() == shown, "docs/onnx.md is stale: python -m tests.kernels.onnx_table"
