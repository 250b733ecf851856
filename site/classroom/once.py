"""A form that makes something which is shown once: loaded again, its page makes no second one.

Such a form has a hidden `form_key`, which is kept for a day as REST keeps an Idempotency-Key.
"""

import secrets

from django.http import HttpRequest

from api import idempotency
from api.errors import Problem
from classroom import people


def new_key() -> str:
    return secrets.token_urlsafe(16)


def is_first(request: HttpRequest) -> bool:
    """Whether the form of this key comes for the first time (without a key it never does)."""
    form_key = request.POST.get("form_key", "")
    try:
        key = idempotency.key_of(form_key, people.caller(request), f"POST {request.path}", "")
        if key is None or idempotency.find(key) is not None:
            return False
        idempotency.note(key)
    except Problem:
        return False
    return True
