"""The radix tree keeps exactly what a list of prefixes with their times would keep."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.serving import prefix_requests
from kernels.serving.bodies import prefix_cache as asked
from kernels.serving.events import EventLog
from kernels.serving.prefix_cache import PrefixCache
from kernels.serving.prefix_requests import Conversations, PrefixRequest

# Few different tokens, so that much is shared; and repetitions, so that edges are cut in odd places.
TOKENS = st.lists(st.sampled_from([0, 1, 1, 2]), min_size=1, max_size=9)
REQUESTS = st.lists(st.tuples(TOKENS, st.lists(st.sampled_from([0, 1]), max_size=4)), min_size=1, max_size=25)


class Prefixes:
    """Every prefix in the cache by itself, with the time of its last use."""

    def __init__(self, capacity):
        self.capacity, self.used, self.time = capacity, {}, 0

    def longest(self, tokens):
        return max(n for n in range(len(tokens) + 1) if n == 0 or tuple(tokens[:n]) in self.used)

    def serve(self, prompt, output):
        self.time += 1
        matched = self.longest(prompt)
        whole = (prompt + output[:-1])[: self.capacity]
        there = self.longest(whole)
        for n in range(1, there + 1):
            self.used[tuple(whole[:n])] = self.time
        for n in range(1, min(matched, len(prompt)) + 1):
            self.used[tuple(prompt[:n])] = self.time
        while self.capacity is not None and len(self.used) + len(whole) - there > self.capacity:
            longer = {prefix[:-1] for prefix in self.used}
            ends = [prefix for prefix in self.used if prefix not in longer]
            del self.used[min(ends, key=self.used.get)]
        for n in range(there + 1, len(whole) + 1):
            self.used[tuple(whole[:n])] = self.time
        return matched, len(whole) - there


def kept(cache):
    """All prefixes of a tree, with their times."""
    paths, found = {0: ()}, {}
    for node in cache.nodes():
        before = paths[node.parent.number]
        paths[node.number] = before + tuple(node.tokens)
        for n in range(1, len(node.tokens) + 1):
            found[before + tuple(node.tokens[:n])] = node.last_used
    return found


@given(REQUESTS, st.sampled_from([0, 1, 3, 7, 12, 20, None]))
@settings(max_examples=400)
def test_the_tree_keeps_what_a_list_of_prefixes_keeps(requests, capacity):
    tree, brute = PrefixCache(capacity), Prefixes(capacity)
    for prompt, output in requests:
        served = tree.serve(prompt, output)
        assert (served.matched, served.inserted) == brute.serve(prompt, output)
        assert kept(tree) == brute.used
        assert tree.size == len(brute.used)
        assert capacity is None or tree.size <= capacity


@given(REQUESTS)
def test_it_is_a_radix_tree(requests):
    """No empty edge, and no two that begin alike at one node."""
    tree = PrefixCache(15)
    for prompt, output in requests:
        tree.serve(prompt, output)
        for node in tree.nodes():
            assert node.tokens
            assert node.parent.children[node.tokens[0]] is node
        assert all(token == child.tokens[0] for token, child in tree.root.children.items())


def test_by_hand():
    cache = PrefixCache(6)
    assert cache.serve([1, 2, 3, 4]).matched == 0
    assert cache.serve([1, 2, 5]).matched == 2  # the edge 1 2 3 4 is cut after 2
    assert [(node.tokens, node.last_used) for node in cache.nodes()] == [([1, 2], 2), ([3, 4], 1), ([5], 2)]
    third = cache.serve([1, 2, 6, 7])  # five are there and two come: 4 goes, which was used longest ago
    assert [each.tokens for each in third.evicted] == [1]
    assert cache.serve([1, 2, 3, 4]).matched == 3


def test_the_last_token_of_a_prompt_is_always_computed():
    cache = PrefixCache(None)
    cache.serve([1, 2, 3])
    again = cache.serve([1, 2, 3])
    assert (again.matched, again.computed) == (3, 1)


def test_the_next_turn_finds_the_answer_but_for_its_last_token():
    cache = PrefixCache(None)
    cache.serve([1, 2], output=[3, 4])
    assert cache.serve([1, 2, 3, 4, 5]).matched == 3


def test_a_prompt_longer_than_the_cache_is_kept_as_far_as_it_fits():
    cache = PrefixCache(3)
    cache.serve([9, 9])
    cache.serve([1, 2, 3, 4, 5])
    assert kept(cache) == {(1,): 2, (1, 2): 2, (1, 2, 3): 2}


def test_what_conversations_share_in_closed_form():
    """One system prompt of 10, four conversations of two turns, messages of 2 and answers of 3: the first
    computes 12; every other first turn finds the system prompt; a second turn of 17 finds the 12 of the
    first and two of the answer's tokens."""
    drawn = Conversations(4, 2, 1, (10, 10), (2, 2), (3, 3), seed=5)
    requests = drawn.requests()
    assert len(requests) == 8
    summary = prefix_requests.replay(requests, None, EventLog())["summary"]
    assert summary["prompt_tokens"] == 4 * (12 + 17)
    assert summary["saved_tokens"] == 3 * 10 + 4 * 14
    assert summary["hit_rate"] == summary["saved_tokens"] / summary["prompt_tokens"]
    assert summary["unlimited"]["saved_tokens"] == summary["saved_tokens"]


def test_a_small_cache_saves_less_and_says_what_an_unlimited_one_would():
    requests = Conversations(6, 3, 2, (20, 20), (5, 5), (5, 5), seed=1).requests()
    summaries = [prefix_requests.replay(requests, size, EventLog())["summary"] for size in (0, 60, 120, None)]
    saved = [summary["saved_tokens"] for summary in summaries]
    assert saved[0] == 0
    assert saved == sorted(saved)
    assert {summary["unlimited"]["saved_tokens"] for summary in summaries} == {saved[-1]}
    assert summaries[1]["peak_size"] <= 60 < summaries[3]["peak_size"]
    assert summaries[1]["evicted_tokens"] > 0 == summaries[3]["evicted_tokens"]


@pytest.mark.parametrize("capacity", [4, None])
def test_words_and_numbers_are_tokens_alike(capacity):
    by_word = asked.simulate({"capacity": capacity, "requests": [["a", "b", "c"], ["a", "b", "d"]]})
    by_number = asked.simulate({"capacity": capacity, "requests": [[1, 2, 3], [1, 2, 4]]})
    assert by_word["timeline"] == by_number["timeline"]
    assert by_word["summary"] == by_number["summary"]
    assert by_word["tree"][0]["tokens"] == ["a", "b"]


def test_figures_and_events_tell_the_same():
    requests = [PrefixRequest((1, 2, 3)), PrefixRequest((1, 2, 4, 5, 6)), PrefixRequest((7, 8))]
    log = EventLog()
    answer = prefix_requests.replay(requests, 5, log)
    for kind, name, figure in [
        ("match", "matched", "matched"), ("insert", "tokens", "inserted"), ("evict", "tokens", "evicted")
    ]:  # fmt: skip
        total = sum(event.details[name] for event in log.events if event.kind == kind)
        assert total == sum(answer["timeline"][figure])
    inserted, evicted = sum(answer["timeline"]["inserted"]), sum(answer["timeline"]["evicted"])
    assert answer["timeline"]["size"][-1] == inserted - evicted
