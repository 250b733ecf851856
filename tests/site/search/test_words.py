"""What counts as a word, and formulas as text."""

import pytest

from concepts.maths import to_mathml
from search import plain, words
from search.typos import Neighbours, distance


def found_by(text: str) -> list[str]:
    return [token for word in words.iterate(text) for token in word.tokens]


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("QK^T", "QKᵀ"),
        ("qk⊤", "QKᵀ"),
        ("dk", "d_k"),
        ("sqrt(d)", "√d"),
        ("l", "ℓ"),
        ("alpha", "α"),
        ("THETA", "θ"),
        ("n2", "n²"),
        ("n^2", "n²"),
        ("65504", "65,504"),
        ("Re", "Ré"),
        ("lukasz", "Łukasz"),
        ("Re\u0301", "Ré"),
        ("inf", "∞"),
    ],
)
def test_signs_can_be_typed(typed: str, written: str) -> None:
    assert [word.tokens[0] for word in words.iterate(typed)] == found_by(written)


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("log-sum-exp", ["logsumexp", "log", "sum", "exp"]),
        ("num_heads", ["numheads", "num", "heads"]),
        ("FlashAttention", ["flashattention", "flash", "attention"]),
        ("torch.nn", ["torchnn", "torch", "nn"]),
    ],
)
def test_compounds_are_found_whole_and_by_their_parts(written: str, parts: list[str]) -> None:
    assert found_by(written) == parts


def test_names_in_capitals_stay_whole() -> None:
    assert found_by("RoPE ALiBi PyTorch QKV") == ["rope", "alibi", "pytorch", "qkv"]


def test_words_know_where_they_stand() -> None:
    text = "by √d, as Łukasz said"
    assert [text[word.start : word.end] for word in words.iterate(text)] == [
        "by",
        "√",
        "d",
        "as",
        "Łukasz",
        "said",
    ]


@pytest.mark.parametrize(
    "forms",
    [
        "mask masks masked masking",
        "cache caches cached caching",
        "tile tiles tiled tiling",
        "bias biases",
        "query queries",
        "quantised quantized quantisation quantization",
    ],
)
def test_forms_of_a_word_have_something_in_common(forms: str) -> None:
    assert len({words.stem(form, "en") for form in forms.split()}) == 1


def test_different_words_stay_different() -> None:
    apart = (
        "attention",
        "attend",
        "softmax",
        "soft",
        "max",
        "key",
        "value",
        "query",
        "score",
        "scale",
        "bias",
    )
    assert len({words.stem(word, "en") for word in apart}) == len(apart)


def test_other_languages_are_not_treated_as_english() -> None:
    assert words.stem("maskierung", "de") == "maskierung"


@pytest.mark.parametrize(
    ("latex", "line"),
    [
        (r"QK^\top/\sqrt{d_k}", "QKᵀ/√d_k"),
        (r"\frac{QK^{\top}}{\sqrt{d}}", "QKᵀ/√d"),
        (r"O(n^2)", "O(n²)"),
        (r"e^{-m}", "e^−m"),
        (r"x = -1", "x = −1"),
        (r"\frac{a+b}{c}", "(a + b)/c"),
        (r"m_{i+1}", "m_(i + 1)"),
    ],
)
def test_formulas_read_as_they_are_typed(latex: str, line: str) -> None:
    assert plain.formula(to_mathml(latex)) == line


def test_a_page_is_read_under_its_headings_without_what_is_folded() -> None:
    html = (
        '<p>Before <span class="term"><a href="#">x</a><span class="term-means">meaning</span></span>.</p>'
        '<h2 id="one">One <em>more</em></h2><p>text</p><ul><li>a</li><li>b</li></ul>'
        '<details class="fold question"><summary>q</summary><p>the <b>answer</b></p></details>'
        "<p>after &lt;b&gt;</p>"
        '<aside class="callout wrong" id="no"><p class="wrong-claim">“No.”</p><p>Yes.</p></aside><p>on</p>'
    )
    found = [(each.anchor, each.heading, each.text) for each in plain.passages(html)]
    assert found == [
        ("", "", "Before x."),
        ("one", "One more", "text a b after <b>"),
        ("no", "“No.”", "Yes."),
        ("one", "One more", "on"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "off"),
    [
        ("attention", "attention", 0),
        ("atention", "attention", 1),
        ("attentoin", "attention", 1),
        ("rotery", "rotary", 1),
        ("bahdanu", "bahdanau", 1),
        ("", "abc", 3),
        ("kitten", "sitting", 3),
    ],
)
def test_letters_off(one: str, other: str, off: int) -> None:
    assert distance(one, other) == distance(other, one) == off


def test_neighbours_are_those_that_a_full_search_finds() -> None:
    vocabulary = dict.fromkeys(
        ("attention", "attentive", "intention", "detention", "retention", "softmax"), 1
    )
    vocabulary |= dict.fromkeys(("rotary", "rotate", "notary", "flash", "flesh", "bahdanau"), 1)
    neighbours = Neighbours(vocabulary)
    for typed in ("atention", "rotery", "flush", "tention", "softmxa", "bahdanu", "xyzzyx"):
        most = 2 if len(typed) >= 8 else 1
        off = {word: distance(typed, word) for word in vocabulary}
        nearest = min(off.values())
        expected = {word for word in vocabulary if off[word] == nearest <= most}
        assert {word for word, _ in neighbours.of(typed)} == expected, typed
