"""A POST to an address that a user chose, without becoming the user's way into our network.

The host is resolved once, every address that it has must be public, and the connection goes to the address
that was looked at: a name that answers differently a moment later leads nowhere else. Nothing is redirected,
and the whole exchange ends at its deadline however slowly it drips.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 10.0
RESOLVE_SECONDS = 3.0
MAX_URL = 2000
NAT64 = ipaddress.ip_network("64:ff9b::/96")
# All that is routed in public. Python takes for global what is merely nobody's: ::/96, fec0::/10 …
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Public by their number, and yet a cloud's own service to the machines in it.
CLOUD_SERVICES = {ipaddress.ip_address("168.63.129.16")}

_resolver = ThreadPoolExecutor(4, thread_name_prefix="resolve")


class BadAddress(ValueError):
    """The URL is not one that we send to; `code` for programs."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class Unreachable(OSError):
    """Nobody answered."""


@dataclass(frozen=True)
class Target:
    """A URL taken apart."""

    host: str
    port: int
    path: str
    is_https: bool


def target_of(url: str) -> Target:
    """Raises BadAddress for what is no plain http(s) URL."""
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise BadAddress("bad-url", f"url must be at most {MAX_URL} printable ASCII characters, none a blank")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadAddress("bad-url", f"url cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadAddress("bad-url", "url must begin with https:// (or http://) and a host")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("bad-url", "url must hold no user name or password; check the signature instead")
    port = port or (443 if parts.scheme == "https" else 80)
    if port not in (80, 443) and port < 1024:
        raise BadAddress("bad-port", f"port {port} is not for webhooks; use 443, 80 or one from 1024 on")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.hostname, port, path, parts.scheme == "https")


def addresses_of(target: Target) -> list[IPAddress]:
    """Every address of the host. Raises BadAddress when one of them is not public, Unreachable when there is
    none, or the name service does not say so in time."""
    look_up = _resolver.submit(socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM)
    try:
        found = look_up.result(RESOLVE_SECONDS)
    except UnicodeError:
        raise BadAddress("bad-url", f"{target.host} is no name that a host can have") from None
    except (OSError, TooSlow) as error:
        raise Unreachable(f"{target.host} has no address ({str(error) or 'no answer in time'})") from None
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    for address in addresses:
        if not may_be_reached(address):
            raise BadAddress(
                "private-address",
                f"{target.host} is {address}, which is not a public address; webhooks go to public ones only",
            )
    return list(dict.fromkeys(addresses))


def may_be_reached(address: IPAddress) -> bool:
    """Whether it is public, or in a network that the operator allows."""
    networks = [ipaddress.ip_network(network) for network in settings.WEBHOOK_NETWORKS]
    if any(address in network for network in networks):
        return True
    inner = _inner(address)
    if inner is not None:
        return may_be_reached(inner)
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and address not in CLOUD_SERVICES


def _inner(address: IPAddress) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """The status of the answer. Raises BadAddress, or Unreachable for whatever else went wrong."""
    target = target_of(url)
    connection = _Pinned(target, addresses_of(target))
    deadline = threading.Timer(TOTAL_SECONDS, connection.cut)
    deadline.start()
    try:
        connection.request("POST", target.path, body, dict(headers))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        # AttributeError: http.client's, when the deadline cut the connection between two of its steps.
        why = (
            f"no answer in {TOTAL_SECONDS:g} s" if connection.was_cut else str(error) or type(error).__name__
        )
        raise Unreachable(why[:300]) from None
    finally:
        deadline.cancel()
        connection.close()


class _Pinned(http.client.HTTPConnection):
    """A connection to given addresses under the name of a host."""

    def __init__(self, target: Target, addresses: Sequence[IPAddress]) -> None:
        super().__init__(target.host, target.port, timeout=CONNECT_SECONDS)
        self.default_port = 443 if target.is_https else 80  # for the Host header
        self._addresses, self._is_https = addresses, target.is_https
        self.was_cut = False

    def connect(self) -> None:
        for left, address in zip(range(len(self._addresses) - 1, -1, -1), self._addresses, strict=True):
            try:
                self.sock = socket.create_connection((str(address), self.port), self.timeout)
                break
            except OSError:
                if self.was_cut or not left:  # a name may have a hundred addresses at which nobody answers
                    raise
        if self._is_https:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """End it, whatever it waits for."""
        self.was_cut = True
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.sock.close()
