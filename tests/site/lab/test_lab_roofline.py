"""The roofs of GPUs over a run: figures of data sheets, and whichever of the two bounds is lower."""

import re

from django.http import QueryDict

from lab.runs import roofline

RUN = {
    "cost": {"flops": 4_000_000_000, "bytes_min": 10_000_000},
    "traffic": {"bytes_read": 30_000_000, "bytes_written": 10_000_000},
}


def section(found=RUN, query=""):
    return roofline.section(found, QueryDict(query), [])


def test_a_run_below_the_ridge_is_bound_by_memory():
    shown = section(query="gpu=h100-sxm")
    # 100 FLOP per byte × 3.35 TB/s (NVIDIA's H100 data sheet) = 335 TFLOP/s of 989
    assert shown["sentences"] == [
        "H100 SXM: bound by memory. At most 335 TFLOP/s, 33.87 % of its 989 TFLOP/s; its arithmetic is the "
        "bound from 295 FLOP per byte."
    ]
    assert shown["rows"] == [["H100 SXM", "295", "335 TFLOP/s", "989 TFLOP/s"]]


def test_a_run_beyond_the_ridge_is_bound_by_arithmetic():
    shown = section({"cost": {"flops": 4e12, "bytes_min": 1e9}}, "gpu=h100-sxm")
    assert shown["sentences"] == ["H100 SXM: bound by arithmetic, at most 989 TFLOP/s."]


def test_unknown_gpus_are_passed_over_and_none_means_the_usual():
    assert [row[0] for row in section(query="gpu=abacus")["rows"]] == ["A100 80 GB SXM", "H100 SXM", "B200"]
    assert [row[0] for row in section(query="gpu=l4&gpu=l4&gpu=%00")["rows"]] == ["L4"]
    chosen = [slug for slug, _, is_chosen in section(query="gpu=l4")["choices"] if is_chosen]
    assert chosen == ["l4"]


def test_without_arithmetic_or_bytes_there_is_no_plot():
    assert section({}) is None
    assert section({"cost": {"flops": 0, "bytes_min": 0}, "traffic": {"bytes_read": 0}}) is None


def test_the_marks_lie_on_the_roofs():
    """Where two GPUs have the same FLOP per byte, the faster memory is higher."""
    svg = section(query="gpu=l4&gpu=b200")["svg"]
    at = re.findall(r"translate\(([\d.]+) ([\d.]+)\)", svg)
    (x1, y1), (x2, y2) = at[:2]
    assert x1 == x2
    assert float(y2) < float(y1)
