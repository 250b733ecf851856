"""Values of a request as people type them, and back: a number, a list, an array, an object of the REST API.

What cannot be read at all raises `lab.matrices.MatrixError`. What can be read and is still wrong (a word in
the place of a number) is passed on as it is: `kernels.spec.parse_run` says what is wrong with it.
"""

import json
import math
import re
from typing import Any

from django.utils.translation import gettext as _

from api import strict_json
from lab import matrices

MAX_OBJECT = 200_000  # characters of an object; base64 of more numbers belongs in a file


def literal(text: Any) -> Any:
    """A JSON value from a box: a number where it is one, None where it is empty, else the text itself."""
    if not isinstance(text, str):
        return text
    if not text:
        return None
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        return int(text)
    if len(text) <= 40 and re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        value = float(text)
        return value if math.isfinite(value) else text
    return text


def number_or_list(text: str) -> Any:
    """A number, or lists of numbers: a line of them is one list, several lines are a list of each."""
    value = literal(text)
    if not isinstance(value, str) or value.isidentifier():  # a word, such as auto
        return value
    nested = matrices.parse(text)
    is_one_line = "[" not in text and len(nested) == 1 and isinstance(nested[0], list)
    return nested[0] if is_one_line else nested


def listed(text: str) -> Any:
    """As `number_or_list`; a number alone is a list of one."""
    value = number_or_list(text)
    return [value] if isinstance(value, int | float) else value


def array(text: str, *, booleans: bool = False) -> Any:
    """An ARRAY of the contract: pasted numbers, or one of its objects (`{"seed": …}`, `{"b64": …}`)."""
    if not text.lstrip().startswith("{"):
        return matrices.parse(text, booleans=booleans)
    if len(text) > MAX_OBJECT:
        detail = _("{count:,} characters are more than an object may have here ({limit:,}): upload a file.")
        raise matrices.MatrixError(detail.format(count=len(text), limit=MAX_OBJECT), text, 0)
    try:
        return strict_json.loads(text.encode(errors="replace"))
    except strict_json.Malformed as error:
        detail = _("no JSON object can be read here. {what}").format(what=error.detail)
        raise matrices.MatrixError(detail, text, 0) from None


def text_of(value: Any) -> str:
    """A value as a control has it. null is an empty one."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return matrices.to_text(value) if isinstance(value, list) else str(value)
