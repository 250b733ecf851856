"""Addresses that lead nowhere public, and exchanges that end."""

import socket
import time

import pytest

from workers.grading import outgoing


@pytest.mark.parametrize(
    "host",
    [
        "[::127.0.0.1]", "[::7f00:1]", "[::ffff:0:127.0.0.1]", "[fec0::1]", "[64:ff9b:1::7f00:1]",
        "[4000::1]", "[5f00::1]", "[e000::1]", "[100:0:0:1::1]",
    ],
)  # fmt: skip
def test_what_is_not_routed_in_public_is_not_reached(host):
    with pytest.raises(outgoing.BadAddress, match="not a public address"):
        outgoing.addresses_of(outgoing.target_of(f"http://{host}/"))


@pytest.mark.parametrize("host", ["..", "a..b", "x" * 64 + ".org"])
def test_what_no_host_can_be_called_is_said_at_once(host):
    with pytest.raises(outgoing.BadAddress, match="no name that a host can have"):
        outgoing.addresses_of(outgoing.target_of(f"http://{host}/"))


def test_a_name_with_many_addresses_at_which_nobody_answers_ends_at_the_deadline(monkeypatch):
    """Each takes seconds to fail."""
    found = [(0, 0, 0, "", (f"8.8.8.{n}", 80)) for n in range(100)]
    asked = []

    def hang(address, _timeout):
        asked.append(address)
        time.sleep(0.2)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(outgoing, "TOTAL_SECONDS", 0.5)
    with pytest.raises(outgoing.Unreachable, match=r"no answer in 0.5 s"):
        outgoing.post("http://example.org/", b"{}", {})
    assert 1 < len(asked) < 10
