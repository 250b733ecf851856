"""What anybody with an account may write in a problem can do nothing but be read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classroom.statements import ELEMENTS, to_html

ALLOWED = ELEMENTS | {
    "p", "a", "em", "strong", "code", "pre", "ul", "ol", "li", "br", "hr", "blockquote", "h2", "h3", "h4",
    "h5", "h6", "div", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
HARMFUL = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](https://elsewhere.example/x.png)",
    "[x](javascript:alert(1))",
    "[x](//elsewhere.example/)",
    "[x](data:text/html,<script>alert(1)</script>)",
    "<https://a.example/\"onmouseover=alert(1)>",
    r"$\text{<script>alert(1)</script>}$",
    r"$\text{<img src=x onerror=alert(1)>}$",
    r"$\text{&#x3c;script&#x3e;alert(1)&#x3c;/script&#x3e;}$",
    r"$\textbf{<img src=x onerror=alert(1)>}$",
    r"$\operatorname{<script>}$",
    r"$\text{&#x0; &#xffffffff;}$",
    r"$\href{javascript:alert(1)}{x}$",
    r"$\color{red\" onclick=\"alert(1)}{x}$",
    r"$$\text{</math><script>alert(1)</script>}$$",
    r"$\class{lit}{x}$",
    r"$\style{position:fixed}{x}$",
    "$" + "{" * 900 + "$",
    "$" + r"\frac{1}{" * 200 + "$",
]  # fmt: skip


def check(html):
    for name in re.findall(r"<\s*/?\s*([a-zA-Z0-9]+)", html):
        assert name in ALLOWED, html[:300]
    for tag in re.findall(r"<[a-z][^>]*>", html):
        for attribute in re.findall(r'\s([a-zA-Z-]+)="', tag):
            assert not attribute.startswith("on"), tag
            assert attribute not in ("style", "src", "id"), tag
        for target in re.findall(r'href="([^"]*)"', tag):
            assert re.match(r"(https?://|mailto:|/(?!/)|#|\?)", target), tag


@pytest.mark.parametrize("text", HARMFUL)
def test_nothing_in_a_statement_runs_or_loads(text):
    check(to_html(text))
    check(to_html(f"A line with {text} in it.\n\n| a |\n|---|\n| {text} |\n"))


@given(st.text(alphabet=r"$\{}[]()<>&_^`*#!|\"'abx12 /:-" + "\n", max_size=80))
def test_nothing_at_all_gets_through(text):
    check(to_html(text))


def test_what_is_meant_is_shown():
    html = to_html(
        "## Do\n\nFind $\\frac{QK^\\top}{\\sqrt d}$ and\n\n$$x^2$$\n\n- *one*\n\n|a|\n|-|\n|`b`|\n"
    )
    assert "<h2>Do</h2>" in html
    assert "<mfrac>" in html
    assert '<math display="block" tabindex="0">' in html
    assert "<em>one</em>" in html
    assert '<table class="table">' in html


def test_a_formula_that_cannot_be_shown_stands_there_as_it_was_written():
    assert "<code>$\\nosuch{x}$</code>" in to_html("So $\\nosuch{x}$ it is.")


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (r"\text{a < b}", "a\xa0&lt;\xa0b"),
        (r"\text{q & k > 0}", "q\xa0&amp;\xa0k\xa0&gt;\xa00"),
        (r"\textbf{if i<j}", "if\xa0i&lt;j"),
        (r"\text{<b>}", "&lt;b&gt;"),
        (r"\text{a &lt; b}", "a\xa0&amp;lt;\xa0b"),
        (r"\dfrac{a}{b} \mbox{ where } a < b", "where"),
    ],
)
def test_the_words_of_a_formula_are_shown_as_they_were_written(formula, shown):
    html = to_html(f"So ${formula}$.")
    assert "<code>" not in html
    assert shown in html
    check(html)


def test_a_formula_between_double_dollars_is_shown_apart_wherever_it_stands():
    assert '<math display="block"' in to_html("It is $$x+y$$ for all.")


def test_headings_follow_the_page_and_leave_no_level_out():
    text = "### One\n\n###### Two\n\n### Three\n"
    assert re.findall(r"<(h\d)>", to_html(text)) == ["h2", "h3", "h2"]
    assert re.findall(r"<(h\d)>", to_html(text, below=3)) == ["h4", "h5", "h4"]


def test_a_header_that_says_nothing_is_no_header():
    html = to_html("| | key 1 |\n|---|---|\n| query 1 | 0.4 |\n")
    assert html.count("<th>") == 1
    assert "<td></td>" in html
