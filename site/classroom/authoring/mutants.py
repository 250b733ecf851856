"""The mutant table of a problem: which wrong computations its cases tell, and what would help."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from classroom import words

OUTCOMES = ("survives", "killed", "coincides", "irrelevant")  # what matters most first


def table(matrix: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The matrix of `kernels.grading.mutants` for the page; None while there is none."""
    if not matrix:
        return None
    rows = [_row(row) for row in matrix["rows"]]
    surviving = sum(row["outcome"] == "survives" for row in rows)
    return {
        "is_publishable": matrix["publishable"],
        "surviving": surviving,
        "other_problems": matrix["problems"][surviving:],  # the first say what the table says
        "killed": matrix["killed"],
        "total": matrix["total"],
        "rows": sorted(
            (row for row in rows if row["outcome"] != "irrelevant"),
            key=lambda row: OUTCOMES.index(row["outcome"]),
        ),
        "irrelevant": [row for row in rows if row["outcome"] == "irrelevant"],
        "precision": [
            {
                "dtype": dtype,
                "passes": each["passes"],
                "should": each["should_pass"],
                "is_bad": each["should_pass"] and not each["passes"],
                "failed": [words.case_name(name) for name in each["failed"]],
            }
            for dtype, each in matrix["precision"].items()
        ],
        "least_dtype": matrix.get("least_dtype"),
        "suggestions": suggestions(matrix["suggestions"]),
    }


def suggestions(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What would help, each once, with all the mistakes that it would tell."""
    by_change: dict[str, dict[str, Any]] = {}
    for index, each in enumerate(found):
        what = each["detail"].removesuffix(f" would kill {each['code']}.")
        new = {"what": what, "index": index, "can_apply": each["change"] is not None, "codes": []}
        by_change.setdefault(what, new)["codes"].append(each["code"])
    return list(by_change.values())


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["survives"]:
        outcome = "survives"
    elif row["relevant"]:
        outcome = "killed"
    else:
        outcome = "coincides" if row["coincides"] else "irrelevant"
    return {
        "code": row["code"],
        "words": words.mistake(row["code"]),
        "outcome": outcome,
        "killed_by": [words.case_name(name) for name in row["killed_by"]],
        "survivors": row["survivors"],
        "unnoticed": row["unnoticed"],
    }


def changed(body: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A problem as a suggestion would have it."""
    found: dict[str, Any] = deepcopy(dict(body))
    cases = found["cases"]
    if "tolerance" in change:
        found["tolerance"] = change["tolerance"]
    elif "answer" in change:
        found["answer"] = [*found["answer"], {"name": change["answer"], "points": 1}]
    elif "shape" in change:
        new = {
            name: value for name, value in cases[0].items() if name not in ("inputs", "operations", "seed")
        }
        taken = {case["name"] for case in cases}
        name = next(name for n in range(2, 99) if (name := f"more-{n}") not in taken)
        cases.append({**new, **change, "name": name})
    elif "case" in change:
        for case in cases:
            if case["name"] == change["case"]:
                case["distribution"] = change["distribution"]
    return found
