"""How often one may try to get in: counted in Redis, atomically, by address and by name.

A try is charged before the password is looked at, so that many at the same moment are no more than many one
after the other; one that succeeds is given back. By name, too, since addresses are cheap: whoever guesses at
one account from everywhere keeps its owner out for a quarter of an hour at worst. Without Redis nothing can
be counted, and nobody is let in or makes an account until it is back; whoever is signed in stays so.
"""

from django.conf import settings
from django.http import HttpRequest
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from api.callers import client_address, digest
from workers import quotas
from workers.quotas import Quota, QuotaExceeded

WINDOW = 900


COUNTS_AGAIN = 5  # seconds after which one may look whether tries can be counted


class NotNow(Exception):
    """This try is not taken; `retry_after` is in whole seconds."""

    status: int
    title: str
    retry_after: int


class TooOften(NotNow):
    status = 429

    def __init__(self, error: QuotaExceeded) -> None:
        self.title = _("Too many tries")
        self.retry_after = error.retry_after
        minutes = max(1, round(error.retry_after / 60))
        super().__init__(_("Too many tries. Wait {minutes} min, then try again.").format(minutes=minutes))


class NotCounted(NotNow):
    status, retry_after = 503, COUNTS_AGAIN

    def __init__(self) -> None:
        self.title = _("Not now")
        super().__init__(_("Tries cannot be counted at the moment, so none is taken. Try again in a minute."))


def try_to_sign_in(request: HttpRequest, name: str) -> None:
    """Charge one try. Raises NotNow."""
    for quota, holder in _sign_in(request, name):
        _take(quota, holder)


def signed_in(request: HttpRequest, name: str) -> None:
    """The try was no guess."""
    for quota, holder in _sign_in(request, name):
        quotas.put_back(quota, holder)


def sign_up(request: HttpRequest) -> None:
    """Charge one new account. Raises NotNow."""
    _take(Quota("sign-up", "accounts", settings.SIGN_UPS_PER_ADDRESS, 3600), _address(request))


def _take(quota: Quota, holder: str) -> None:
    try:
        standing = quotas.take(quota, holder)
    except QuotaExceeded as error:
        raise TooOften(error) from None
    if standing is None:
        raise NotCounted


def _sign_in(request: HttpRequest, name: str) -> list[tuple[Quota, str]]:
    known_as = salted_hmac("classroom.accounts.throttle", name.casefold(), algorithm="sha256").hexdigest()[
        :32
    ]
    return [
        (Quota("sign-in", "tries", settings.SIGN_INS_PER_ADDRESS, WINDOW), _address(request)),
        (Quota("sign-in-name", "tries", settings.SIGN_INS_PER_NAME, WINDOW), f"name:{known_as[:32]}"),
    ]


def _address(request: HttpRequest) -> str:
    return f"address:{digest(client_address(request))}"
