"""One submission, many report formats; each made of the document that its reader may see."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

DECIMALS = 9  # of numbers in a table; what float64 rounds is beyond them
# As some spreadsheet reads it: after blanks, in full-width signs, or in a cell of its own, where semicolons
# or tabs separate cells.
FORMULA = re.compile(r"(^|[;\t\r\n])(?=[\s\"]*[=+\-@＝＋－＠])")


def gradescope(document: Mapping[str, Any]) -> dict[str, Any]:
    """results.json of a Gradescope autograder. What is hidden has no score of its own; the total has all."""
    return {
        "score": document["score"],
        "output": headline(document),
        "output_format": "text",
        "visibility": "visible",
        "tests": [
            {name: value for name, value in test.items() if value is not None} for test in document["tests"]
        ],
        "extra_data": {
            name: document[name] for name in ("verdict", "reason", "hypotheses", "notes", "problem_version")
        },
    }


def prairielearn(document: Mapping[str, Any]) -> dict[str, Any]:
    """results.json of a PrairieLearn external grader: a score from 0 to 1."""
    most = document["max_score"]
    share = document["score"] / most if most and document["score"] is not None else 0.0
    rejected = document["verdict"] == "rejected"
    return {
        "gradable": not rejected,
        **({"format_errors": [headline(document)]} if rejected else {}),
        "score": min(1.0, max(0.0, share)),
        "message": headline(document),
        "output": "",
        "tests": [
            {
                "name": test["name"],
                "points": test["score"],
                "max_points": test["max_score"],
                "message": test["output"],
            }
            for test in document["tests"]
            if test["score"] is not None
        ],
    }


FORMATS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "gradescope": gradescope,
    "prairielearn": prairielearn,
}


def headline(document: Mapping[str, Any]) -> str:
    """The verdict in one line."""
    said = str(document["verdict"] or "graded").replace("_", " ")
    reason = f", {str(document['reason']).replace('_', ' ')}" if document["reason"] else ""
    codes = [str(hypothesis["code"]) for hypothesis in document["hypotheses"]]
    looks = f"; looks like {', '.join(codes)}" if codes else ""
    return f"{said}{reason}{looks}"


def to_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """RFC 4180. What a spreadsheet would take for a formula gets an apostrophe in front."""
    columns = list(columns)
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    writer.writerows([_cell(row[name]) for name in columns] for row in rows)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, float):
        return round(value, DECIMALS)
    return FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
