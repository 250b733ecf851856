"""What varies, in words."""

import json
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.registry import ENGINES

# Of what is varied: its name on an axis or in front of a value.
NAMES = {
    "len": gettext_lazy("length"),
    "q_len": gettext_lazy("queries"),
    "kv_len": gettext_lazy("keys"),
    "past_len": gettext_lazy("past keys"),
    "num_heads": gettext_lazy("query heads"),
    "num_kv_heads": gettext_lazy("key/value heads"),
    "head_dim": gettext_lazy("head dimension"),
    "v_head_dim": gettext_lazy("value dimension"),
    "batch": gettext_lazy("batch"),
    "engine": gettext_lazy("engine"),
    "dtype": gettext_lazy("number format"),
    "device": gettext_lazy("device"),
    "seed": gettext_lazy("seed"),
    "distribution": gettext_lazy("distribution"),
    "attention/window": gettext_lazy("window"),
    "attention/is_causal": gettext_lazy("causal"),
    "attention/scale": gettext_lazy("scale"),
    "attention/softcap": gettext_lazy("softcap"),
}
SELF_EVIDENT = ("engine", "dtype", "device", "distribution")  # whose values need no name in front
MAX_TEXT = 48  # characters of a value


def name_of(field: str) -> str:
    """length; block_m; rope"""
    return str(NAMES.get(field) or field.rpartition("/")[2] or field)


def value_text(field: str, value: Any) -> str:
    """A value for people: 4,096; yes; flash; [63, 0]"""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if value is None:
        return _("automatic") if field.startswith("options/") else _("none")
    if isinstance(value, int) and field != "seed":
        return f"{value:,}".replace("-", "−")
    if field == "attention/window" and value == [None, None]:
        return _("none")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def said(field: str, value: Any) -> str:
    """A value with the name of what it is of, where it does not tell by itself: "length 64", "flash"."""
    text = value_text(field, value)
    return text if field in SELF_EVIDENT else f"{name_of(field)} {text}"


def engine_title(name: str) -> str:
    return ENGINES[name].title if name in ENGINES else name
