"""Who is asking, and what that allows."""

import ipaddress
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from api.models import ApiToken


@dataclass(frozen=True)
class Caller:
    """`owner` is "" without a token; `address` is a digest, never the address itself. `assignment` is the
    only one that a token is for."""

    owner: str
    address: str
    scopes: frozenset[str] = frozenset()
    assignment: str = ""

    @property
    def is_anonymous(self) -> bool:
        return not self.owner

    @property
    def budget_seconds(self) -> int:
        return settings.RUN_BUDGET_ANONYMOUS if self.is_anonymous else settings.RUN_BUDGET_TOKEN

    @property
    def scope(self) -> str:
        """Whose idempotency keys these are."""
        return self.owner or f"address:{self.address}"

    def may_see(self, owner: str) -> bool:
        """What a token made is its own; what nobody owns is open to whoever knows its id."""
        return not owner or owner == self.owner


def caller_of(request: HttpRequest, token: ApiToken | None = None) -> Caller:
    address = digest(client_address(request))
    if token is None:
        return Caller("", address)
    return Caller(token.owner, address, frozenset(token.scopes), token.assignment_id or "")


def client_address(request: HttpRequest) -> str:
    """The client's address, believing as many proxies as settings.NUM_PROXIES says there are."""
    hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if hop.strip()]
    if settings.NUM_PROXIES and hops:
        return str(hops[-min(settings.NUM_PROXIES, len(hops))])
    return str(request.META.get("REMOTE_ADDR", ""))


def digest(address: str) -> str:
    """A keyed digest of the address; of IPv6 the /64, which is what one household or host gets."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        text = "unknown"
    else:
        mapped = getattr(ip, "ipv4_mapped", None) or ip
        text = str(ipaddress.ip_network((mapped, 64 if mapped.version == 6 else 32), strict=False))
    return salted_hmac("api.callers", text, algorithm="sha256").hexdigest()[:32]
