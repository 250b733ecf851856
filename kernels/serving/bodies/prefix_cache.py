"""What may be asked of the prefix cache, and its answer."""

from __future__ import annotations

from typing import Any

from kernels.limits import MAX_EXACT
from kernels.serving import prefix_requests
from kernels.serving.bodies.reading import (
    Answer,
    item_pointer,
    logged,
    one_source,
    read_body,
    read_list,
    read_range,
    read_seed,
    required,
)
from kernels.serving.prefix_cache import Token
from kernels.serving.prefix_requests import Conversations, PrefixRequest
from kernels.spec.problems import MALFORMED, TOO_LARGE, Problems, join, show
from kernels.spec.reader import ObjectReader, is_integer

LIMITS = {
    "requests": 500,
    "tokens": 50_000,  # of all prompts and answers together
    "characters": 32,  # of a token that is a word
    "capacity": 2**40,
}
FIELDS = ("capacity", "requests", "conversations")
EXAMPLE: dict[str, Any] = {
    "capacity": 12,
    "requests": [
        {"prompt": ["you", "are", "kind", "hello"], "output": ["hi", "there", "."]},
        {"prompt": ["you", "are", "kind", "bye"]},
        {"prompt": ["you", "are", "kind", "hello", "hi", "there", ".", "why", "?"]},
    ],
}


def simulate(body: object) -> Answer:
    """Answer ``POST /api/v1/simulations/prefix-cache``. Raises :class:`kernels.spec.SpecError`."""
    reader = read_body(body, FIELDS)
    capacity = reader.integer_or_null("capacity", 0, LIMITS["capacity"])
    source = one_source(reader, ("requests", "conversations"))
    requests: list[PrefixRequest] = []
    if source == "requests":
        requests = [
            _request(item, item_pointer(reader, "requests", index), reader.problems)
            for index, item in enumerate(read_list(reader, "requests", LIMITS["requests"], "requests"))
        ]
    elif source:
        requests = _conversations(reader)
    _check_tokens(sum(len(each.prompt) + len(each.output) for each in requests), source, reader)
    reader.problems.raise_if_any()
    answer = logged(lambda log: prefix_requests.replay(requests, capacity, log), "send fewer requests")
    return {"capacity": capacity, **answer}


def _request(item: object, pointer: str, problems: Problems) -> PrefixRequest:
    """A prompt alone, or an object with its output."""
    if isinstance(item, list):
        return PrefixRequest(_prompt(item, pointer, problems))
    reader = ObjectReader(item, pointer, problems, ("prompt", "output"))
    if "prompt" not in reader.fields:
        if isinstance(item, dict):
            required(reader, "prompt", "a list of tokens")
        return PrefixRequest(())
    prompt = _prompt(reader.fields["prompt"], reader.at("prompt"), problems)
    return PrefixRequest(prompt, _read_tokens(reader.fields.get("output", []), reader.at("output"), problems))


def _prompt(value: object, pointer: str, problems: Problems) -> tuple[Token, ...]:
    if value == []:
        problems.add(pointer, "empty", "a prompt has at least one token; leave the request out or add one")
    return _read_tokens(value, pointer, problems)


def _read_tokens(value: object, pointer: str, problems: Problems) -> tuple[Token, ...]:
    """Integers or short words; none when there is a problem."""
    if not isinstance(value, list):
        problems.add(pointer, "wrong-type", f"a list of tokens is needed here, not {show(value)}", MALFORMED)
        return ()
    if len(value) > LIMITS["tokens"]:
        detail = f"{len(value):,} tokens; at most {LIMITS['tokens']:,} are simulated: send fewer"
        problems.add(pointer, "too-large", detail, TOO_LARGE)
        return ()
    for index, token in enumerate(value):
        if not is_integer(token) and not isinstance(token, str):
            detail = f"a token is an integer or a word, not {show(token)}"
            problems.add(join(pointer, index), "wrong-type", detail, MALFORMED)
            return ()
        fits = len(token) <= LIMITS["characters"] if isinstance(token, str) else 0 <= token <= MAX_EXACT
        if not fits:
            detail = (
                f"a token is an integer from 0 to {MAX_EXACT} or a word of at most {LIMITS['characters']} "
                f"characters, not {show(token)}"
            )
            problems.add(join(pointer, index), "out-of-range", detail)
            return ()
    return tuple(value)


def _conversations(body: ObjectReader) -> list[PrefixRequest]:
    names = ("seed", "conversations", "turns", "systems", "system_len", "message_len", "answer_len")
    reader = ObjectReader(body.fields["conversations"], body.at("conversations"), body.problems, names)
    most = LIMITS["tokens"]
    drawn = Conversations(
        conversations=reader.integer("conversations", 8, 1, LIMITS["requests"]),
        turns=reader.integer("turns", 3, 1, LIMITS["requests"]),
        systems=reader.integer("systems", 2, 1, LIMITS["requests"]),
        system_len=read_range(reader, "system_len", (32, 64), 0, most),
        message_len=read_range(reader, "message_len", (4, 16), 1, most),
        answer_len=read_range(reader, "answer_len", (4, 32), 1, most),
        seed=read_seed(reader),
    )
    if body.problems.found:
        return []
    if drawn.conversations * drawn.turns > LIMITS["requests"]:
        detail = (
            f"conversations × turns is {drawn.conversations * drawn.turns:,} requests; at most "
            f"{LIMITS['requests']} are simulated: lower one of them"
        )
        body.problems.add(reader.at("turns"), "too-large", detail, TOO_LARGE)
        return []
    if (most_drawn := _upper_bound(drawn)) > 10 * most:
        _check_tokens(most_drawn, "conversations", body, "as many as ")
        return []
    return drawn.requests()


def _upper_bound(drawn: Conversations) -> int:
    """The most tokens that can be drawn, each prompt repeating what was said before it."""
    system, said = drawn.system_len[1], drawn.message_len[1] + drawn.answer_len[1]
    of_one = system * drawn.turns + said * drawn.turns * (drawn.turns + 1) // 2
    return system * drawn.systems + of_one * drawn.conversations


def _check_tokens(tokens: int, source: str, reader: ObjectReader, hedge: str = "") -> None:
    if tokens > LIMITS["tokens"]:
        detail = (
            f"the requests have {hedge}{tokens:,} tokens together; at most {LIMITS['tokens']:,} are "
            "simulated: send fewer or shorter ones"
        )
        reader.problems.add(reader.at(source), "too-large", detail, TOO_LARGE)
