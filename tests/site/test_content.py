"""The book loads, says what it promises, and its mistakes are found with file and line."""

import re
import xml.etree.ElementTree as ET
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client

from concepts import lists, pages
from concepts.errors import ContentError
from concepts.facts import FACTS
from concepts.markup import LISTS, Listing
from concepts.maths import MathsError, to_mathml
from concepts.pages import CONTENT, Entry, Page, book, load_page, sources

BOOK = book("en")
PAGES = list(BOOK.pages.values())
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug)
# But those whose content is a listing, whatever is said before it.
EVERY_CONCEPT = pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not any(isinstance(piece, Listing) for piece in page.pieces)],
    ids=lambda page: page.slug,
)
GOOD = """---
title: A page
part: 1
summary: A summary.
covers: [C1]
sources: [vaswani2017]
---

Words.
"""


def html_of(page: Page) -> str:
    return "".join(piece for piece in page.pieces if isinstance(piece, str))


def test_six_parts_and_about_forty_concepts() -> None:
    assert len(BOOK.parts) == 6
    slugs = [entry.slug for part in BOOK.parts for entry in part.entries]
    titles = [entry.title for part in BOOK.parts for entry in part.entries]
    assert 40 <= len(slugs) <= 50
    assert len(set(slugs)) == len(slugs)
    assert len(set(titles)) == len(titles)


def test_by_hand_covers_its_rows() -> None:
    assert BOOK.pages["by-hand"].covers == ("C1", "C2", "C3")


@EVERY_CONCEPT
def test_a_page_has_the_length_of_a_page(page: Page) -> None:
    assert 600 <= page.words <= 1600


@EVERY_CONCEPT
def test_a_page_uses_every_source_that_it_lists(page: Page) -> None:
    cited = set(re.findall(r'href="#ref-([a-z0-9-]+)"', html_of(page)))
    assert cited == {source.key for source in page.sources}


@EVERY_CONCEPT
def test_a_page_has_formulas(page: Page) -> None:
    assert "<math" in html_of(page)


@EVERY_PAGE
def test_mathml_is_well_formed_and_free_of_latex(page: Page) -> None:
    formulas = re.findall(r"<math.*?</math>", html_of(page), re.DOTALL)
    for formula in formulas:
        ET.fromstring(formula)
        assert "\\" not in formula
        assert "style=" not in formula
    prose = re.sub(r"<math.*?</math>", "", html_of(page), flags=re.DOTALL)
    assert "$" not in prose
    assert "{fact" not in prose
    assert "[[" not in prose


@EVERY_PAGE
def test_symbols_lead_to_the_figure_and_back(page: Page) -> None:
    html = html_of(page)
    for part in re.findall(r'<div id="sym-(\w+)"', html):
        assert f'href="#{page.slug}-{part}"' in html
        assert re.search(rf'<mi[^>]*data-sym="{part}"', html)


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_can_be_computed_and_is_used(name: str) -> None:
    assert re.fullmatch(r"\(?[−0-9.,e ]+\)?", FACTS[name].text)
    assert any(name in page.facts for page in PAGES), f"no page says {name}"


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "root": "1.4142", "s33": "2", "t31": "0.7071", "t33": "1.4142", "e31": "0.4931", "sum3": "1.9861",
        "w31": "0.2483", "w33": "0.5035", "w13": "0.4011",
        "z1": "(1.2033, 1.1978)", "z2": "(1.0000, 1.6044)", "z3": "(1.2552, 1.5035)",
        "z3-from-shown": "(1.2553, 1.5036)", "shown-sum3": "1.0001",
        "columns": "(0.8471, 0.8471, 1.3057)", "column-total": "3",
        "ratio": "2.0281", "unscaled-w33": "0.5761",
        "pairs": "960",
        "zero-key-old-row": "(0.4011, 0.1978, 0.4011)", "zero-key-row": "(0.5035, 0.2483, 0.2483)",
        "overflow": "88.72", "half-overflow": "11.09",
    }.items(),
)  # fmt: skip
def test_facts_of_the_worked_example(name: str, text: str) -> None:
    assert FACTS[f"by-hand-{name}"].text == text


def test_what_the_page_claims_about_the_example_is_so() -> None:
    from concepts.figures.by_hand import KEYS, QUERIES, VALUES, steps

    usual = steps(QUERIES, KEYS, VALUES)
    doubled = steps(QUERIES, KEYS, (2 * np.array(VALUES)).tolist())
    assert np.array_equal(doubled.weights, usual.weights)
    assert np.allclose(doubled.out, 2 * usual.out)
    moved = steps(QUERIES, (np.array(KEYS) + 1).tolist(), VALUES)
    assert not np.allclose(moved.scores, usual.scores)
    assert np.allclose(moved.powers, usual.powers)
    order = [1, 0, 2]
    swapped = steps(*(np.array(rows)[order].tolist() for rows in (QUERIES, KEYS, VALUES)))
    assert np.allclose(swapped.out, usual.out[order])


def test_no_smaller_non_negative_whole_numbers_give_the_weights_of_the_example() -> None:
    """Every pair of matrices with a smaller sum is tried. Rows of scores that differ by a constant have the
    same weights."""
    from itertools import product

    from concepts.figures.by_hand import KEYS, QUERIES

    def differences(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        scores = queries @ keys.swapaxes(-1, -2)
        return scores - scores[..., :1]

    wanted, total = differences(np.array(QUERIES), np.array(KEYS)), np.sum(QUERIES) + np.sum(KEYS)
    small = [entries for entries in product(range(total), repeat=6) if sum(entries) < total]
    matrices = np.array(small).reshape(-1, 3, 2)
    sums = matrices.sum((1, 2))
    for queries, size in zip(matrices, sums, strict=True):
        keys = matrices[sums < total - size]
        assert not (differences(queries, keys) == wanted).all((1, 2)).any(), queries


def test_a_venue_names_the_year_of_its_source() -> None:
    """ "NeurIPS 2022" of 2022. Where it says when an earlier version came out, it says both."""
    for source in sources().values():
        assert 1800 < source.year < 2100
        words = re.sub(r"\d+–\d+|(Issue|Pull request) \d+", "", source.venue)
        years = re.findall(r"\b(?:1[89]|20)\d\d\b", words)
        assert not years or str(source.year) in years, source


@EVERY_CONCEPT
def test_no_two_sources_of_a_page_are_cited_by_the_same_words(page: Page) -> None:
    """Or nobody could tell which “Touvron et al., 2023” is meant."""
    assert len({source.short for source in page.sources}) == len(page.sources)


@EVERY_CONCEPT
def test_every_source_of_a_page_is_shown_with_its_year_and_venue(client: Client, page: Page) -> None:
    html = client.get(f"/en/concepts/{page.slug}/").content.decode()
    shown = dict(re.findall(r'<li id="ref-([a-z0-9-]+)">(.*?)</li>', html, re.DOTALL))
    assert shown.keys() == {source.key for source in page.sources}
    for source in page.sources:
        words = unescape(re.sub(r"<[^>]+>", "", shown[source.key]))
        title = source.title if source.title[-1] in "?!…" else f"{source.title}."
        assert words == f"{source.authors} ({source.year}). {title} {source.venue}."
        assert f'href="{escape(source.url)}"' in shown[source.key]


ENTRY = """\
first2020:
  authors: A. First
  short: First, 2020
  title: A title
  venue: ICLR 2020
  year: 2020
  url: https://arxiv.org/abs/2000.00000
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (ENTRY[start:end], "", f"missing 1 required positional argument: '{name}'")
        for name, start, end in (
            (name, ENTRY.index(f"  {name}:"), ENTRY.index("\n", ENTRY.index(f"  {name}:")) + 1)
            for name in ("authors", "short", "title", "venue", "year", "url")
        )
    ]
    + [
        ("venue: ICLR 2020", 'venue: ""', "venue is empty"),
        ("year: 2020", "year: 2021", "year is 2021, and short says First, 2020"),
        ("year: 2020", 'year: "2020"', "year is not a number"),
        ("https://", "http://", "and not https://"),
        ("  url", "  link: here\n  url", "unexpected keyword argument 'link'"),
    ],
)
def test_an_entry_of_the_bibliography_that_lacks_something_is_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text("# words\n" + ENTRY)
    assert pages.load_sources(path)["first2020"].venue == "ICLR 2020"
    path.write_text("# words\n" + ENTRY.replace(before, after, 1))
    with pytest.raises(ContentError, match=re.escape(message)) as caught:
        pages.load_sources(path)
    assert str(caught.value).startswith("sources.yaml:2: first2020: ")


@pytest.mark.parametrize(
    ("numbers", "third", "count", "smallest"),
    [
        (range(-2, 3), None, 960, (6, 24)),
        (range(-2, 3), (1, 1, 2), 184, (8, 8)),  # with the scores of query 3 that the example has
        (range(4), (1, 1, 2), 2, (8, 2)),
    ],
)
def test_other_matrices_have_the_weights_of_the_example(
    numbers: range, third: tuple[int, ...] | None, count: int, smallest: tuple[int, int]
) -> None:
    """Counted one by one: how many pairs there are, the smallest sum of their absolute entries, and how many
    of them have it."""
    from itertools import product

    sums: list[int] = []
    vectors = list(product(numbers, repeat=2))
    for keys in product(vectors, repeat=3):
        fitting: list[list[int]] = [[], [], []]
        for query in vectors:
            scores = tuple(query[0] * a + query[1] * b for a, b in keys)
            leads = (scores[1] - scores[0], scores[2] - scores[0])
            for row, wanted in enumerate(((-1, 0), (1, 1), (0, 1))):
                if leads == wanted and (row < 2 or third in (None, scores)):
                    fitting[row].append(sum(map(abs, query)))
        size = sum(abs(entry) for key in keys for entry in key)
        sums += [size + sum(three) for three in product(*fitting)]
    assert (len(sums), (min(sums), sums.count(min(sums)))) == (count, smallest)


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("Words.", r"Words and $\nonsense{x}$.", 9, r"\nonsense"),
        ("Words.", "Words.\n\nMore {fact:no-such-thing}.", 11, "no fact is called no-such-thing"),
        ("Words.", "Words.\n\nSee [[nowhere]].", 11, "[[nowhere]] is not in the table of contents"),
        ("Words.", "Words [@dao2022].", 9, "[@dao2022] is not among the page's sources"),
        ("Words.", "::: figure no-such\n:::", 9, "no figure “no-such”"),
        ("Words.", "::: figure by-hand no-such\n:::", 9, "no figure “by-hand no-such”"),
        ("Words.", "::: question\n:::", 9, "needs its words"),
        ("[vaswani2017]", "[nobody1999]", 6, "sources.yaml has no nobody1999"),
        ("title: A page", "title: Another", 2, "calls this page “A page”"),
        ("covers: [C1]\n", "", 1, "lacks covers"),
        ("covers:", "colour: red\ncovers:", 5, "unknown key colour"),
        ("covers: [C1]", "covers: [C1", 6, "expected"),
        ("covers: [C1]", "covers: [C1]\ncovers: [C2]", 6, "covers is there twice"),
        ("---\ntitle", "title", 1, "front matter"),
    ],
)
def test_a_mistake_names_its_file_and_line(
    tmp_path: Path, before: str, after: str, line: int, message: str
) -> None:
    path = tmp_path / "a-page.md"
    path.write_text(GOOD.replace(before, after, 1))
    with pytest.raises(ContentError) as caught:
        load_page(path, {"a-page": Entry("a-page", "A page", True)})
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"a-page.md:{line}:")


def test_a_good_page_loads(tmp_path: Path) -> None:
    path = tmp_path / "a-page.md"
    path.write_text(GOOD + "\n> $x^2$ and <b>no HTML</b>\n")
    page = load_page(path, {"a-page": Entry("a-page", "A page", True)})
    assert "&lt;b&gt;" in html_of(page)


def test_a_program_can_be_scrolled_by_keyboard_and_is_shown_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a-page.md"
    path.write_text(GOOD + '\n```python\nx = a < b  # "so"\n```\n')
    page = load_page(path, {"a-page": Entry("a-page", "A page", True)})
    assert '<pre tabindex="0"><code>x = a &lt; b  # &quot;so&quot;\n</code></pre>' in html_of(page)


def test_a_page_that_the_contents_do_not_list_is_found(tmp_path: Path) -> None:
    (tmp_path / "contents.yaml").write_text((CONTENT / "en" / "contents.yaml").read_text())
    (tmp_path / "stray.md").write_text(GOOD)
    with pytest.raises(ContentError, match="stray"):
        pages.load(tmp_path, "en")


def test_a_root_in_a_line_of_text_leaves_no_room_for_a_wider_sign() -> None:
    inline = to_mathml(r"\sqrt{2}/\sqrt{d}")
    assert "msqrt" not in inline
    assert inline.count("√") == 2
    assert "<mn>2</mn>" in inline
    assert "<msqrt>" in to_mathml(r"\sqrt{d}", display=True)
    assert "<msqrt>" in to_mathml(r"\sqrt{a+b}")  # only a bar says how far it reaches


def test_signs_have_room_only_where_something_stands_on_both_sides() -> None:
    shut = to_mathml(r"M\in\{0,-\infty\}")
    assert '<mo form="prefix">&#x02212;</mo><mi mathvariant="normal">&#x0221E;</mi>' in shut
    assert "form" not in to_mathml("a-b")
    assert '<mi mathvariant="normal">E</mi><mo stretchy="false">[' in to_mathml(r"\operatorname{E}[x]")
    assert "<mo>mod</mo>" in to_mathml(r"a\bmod b")


def test_a_name_without_a_bracket_keeps_off_what_follows() -> None:
    assert '<mi>log</mi><mspace width="0.167em" /><mi>p</mi>' in to_mathml(r"\log p")
    assert "mspace" not in to_mathml(r"\log(p)") + to_mathml(r"\log_2(p)")


def test_punctuation_stays_in_the_line_of_its_formula(tmp_path: Path) -> None:
    path = tmp_path / "a-page.md"
    text = "As $x$, then $y$).\n\nAnd $z$ is 3 % of 24 GB. 5 bits. [@vaswani2017]"
    path.write_text(GOOD.replace("Words.", text))
    html = html_of(load_page(path, {"a-page": Entry("a-page", "A page", True)}))
    assert re.findall(r'<span class="unbroken"><math.*?</math>([^<]*)</span>', html) == [",", ")."]
    assert "is 3\u00a0% of 24\u00a0GB. 5 bits" in html


@pytest.mark.parametrize("latex", [r"\foo", r"x\bar y\baz", r"\frac{1}", r"\begin{matrix}"])
def test_latex_that_cannot_become_mathml_is_an_error_that_shows_it(latex: str) -> None:
    with pytest.raises(MathsError) as caught:
        to_mathml(latex)
    assert latex in str(caught.value)


def test_identifiers_are_tied_to_the_figure() -> None:
    assert '<mi class="sym q" data-sym="q">Q</mi>' in to_mathml("QK", symbols={"Q": "q"})
    assert "data-sym" not in to_mathml("AB", symbols={"Q": "q"})


# --- The glossary ---------------------------------------------------------------------------------


def test_every_term_is_a_sentence_or_two_and_has_a_page() -> None:
    slugs = {entry.slug for part in BOOK.parts for entry in part.entries}
    names = [term.name.casefold() for term in BOOK.glossary]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    for term in BOOK.glossary:
        words = re.sub(r"<math.*?</math>|<[^>]+>", "", term.means, flags=re.DOTALL)
        assert words.strip().endswith("."), term.slug
        assert len(words.split()) <= 40, term.slug
        assert term.entry.slug in slugs


@EVERY_CONCEPT
def test_a_page_marks_the_terms_that_it_explains(page: Page) -> None:
    """Or uses, a term once; the first mark of a page stands where the reader meets the word first."""
    html = html_of(page)
    known = {term.slug for term in BOOK.glossary}
    assert page.terms, "no term is marked"
    assert page.terms <= known
    for slug in page.terms:
        assert html.count(f'id="means-{slug}"') == 1
        assert f'href="../glossary/#term-{slug}" aria-describedby="means-{slug}"' in html


def test_a_term_says_what_it_means_where_it_is_marked() -> None:
    html = html_of(BOOK.pages["sqrt-dk"])
    [shown] = re.findall(r'role="tooltip" id="means-temperature">(.*?)</span>', html)
    assert shown.startswith("What scores are divided by before a softmax")


@pytest.mark.parametrize(
    ("words", "message"),
    [("A [[~nonsense]].", "[[~nonsense]] is not in the glossary"),
     ("A [[~key]] and a [[~key]].", "[[~key]] is marked on this page already")],
)  # fmt: skip
def test_a_mark_that_is_wrong_names_its_file_and_line(tmp_path: Path, words: str, message: str) -> None:
    path = tmp_path / "a-page.md"
    path.write_text(GOOD.replace("Words.", words))
    terms = pages.load_terms(CONTENT / "en" / "glossary.yaml")
    with pytest.raises(ContentError, match=re.escape(message)) as caught:
        load_page(path, {"a-page": Entry("a-page", "A page", True)}, terms)
    assert str(caught.value).startswith("a-page.md:9:")


# --- Listings of the whole book -------------------------------------------------------------------


def test_the_glossary_lists_every_term(client: Client) -> None:
    html = client.get("/en/concepts/glossary/").content.decode()
    assert re.findall(r'<div id="term-([a-z0-9-]+)"', html) == [term.slug for term in BOOK.glossary]


def test_the_references_list_every_source_once_and_who_cites_it(client: Client) -> None:
    html = client.get("/en/concepts/references/").content.decode()
    entries = dict(re.findall(r'<li id="ref-([a-z0-9-]+)">(.*?)</li>', html, re.DOTALL))
    assert entries.keys() == sources().keys()
    assert html.count('id="ref-') == len(entries)
    for key, entry in entries.items():
        citing = {page.slug for page in PAGES if key in {source.key for source in page.sources}}
        assert set(re.findall(r'href="/en/concepts/([a-z-]+)/"', entry)) == citing
        assert escape(sources()[key].url, quote=False) in entry
    names = [sources()[key].short.casefold() for key in entries]
    assert names == sorted(names)
    for key in re.findall(r'href="#ref-([a-z0-9-]+)"', html):
        assert key in entries


def test_every_list_that_a_page_may_have_can_be_made() -> None:
    assert set(LISTS) == set(lists.CONTEXTS)
    for name in LISTS:
        assert lists.render(name, BOOK, {}, "/here/").strip()


def test_a_list_that_there_is_not_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a-page.md"
    path.write_text(GOOD.replace("Words.", "::: list numbers\n:::"))
    with pytest.raises(ContentError, match="there is no list “numbers”"):
        load_page(path, {"a-page": Entry("a-page", "A page", True)})


def test_what_is_wrong_is_listed_from_every_page_and_leads_back_to_it(client: Client) -> None:
    html = client.get("/en/concepts/misconceptions/").content.decode()
    for page in PAGES:
        assert len({claim.id for claim in page.claims}) == html_of(page).count('class="wrong-claim"')
        for claim in page.claims:
            assert f'href="../{page.slug}/#{claim.id}"' in html
            assert f'id="{claim.id}"' in client.get(f"/en/concepts/{page.slug}/").content.decode()
    assert 'href="../quadratic/?n=512#meter"' in html  # a figure that shows it, on its own page
    assert 'href="../quadratic/#ref-dao2022"' in html
    assert "term-means" not in html


@pytest.mark.parametrize(
    ("find", "found"),
    [("three trips", {"memory-hierarchy"}), ("FALCON", {"mqa-gqa-mla", "models"}), ("annotation", set()),
     ("\x00", None), ("%", None), ("x" * 500, set()), ("<b>", set())],
)  # fmt: skip
def test_what_is_wrong_is_found_by_words(client: Client, find: str, found: set[str] | None) -> None:
    answer = client.get("/en/concepts/misconceptions/", {"find": find})
    assert answer.status_code == 200
    html = answer.content.decode()
    if found is not None:
        assert set(re.findall(r'id="of-([a-z-]+)"', html)) == found
    assert ("None has all of these words" in html) == (found == set())
    if found is not None:  # how many is said where it stays while what is found is exchanged
        count = html.count('<article class="wrong"')
        told = re.search(r'id="claims-count" role="status">(\d+) claims?</p>\s*<div class="claims"', html)
        assert told
        assert int(told[1]) == count
    assert 'hx-get="/en/concepts/misconceptions/"' in html  # without the words of before
    assert "<b>" not in html


def test_the_limits_are_those_of_this_server(client: Client, settings: Any) -> None:
    settings.RUN_BUDGET_ANONYMOUS, settings.RETENTION_DAYS_TOKEN = 17, 1234
    html = client.get("/en/concepts/about/").content.decode()
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="num">(.*?)</td><td class="num">(.*?)</td>', html)
    limits = {name: (alone, token) for name, alone, token in rows}
    assert limits["time of a run, seconds"] == ("17", "120")
    assert limits["days that a run is kept"] == ("90", "1,234")
    assert limits["runs a minute"] == ("120", "–")


def test_the_program_is_cited_with_its_release(client: Client) -> None:
    from workers.release import release

    html = client.get("/en/concepts/about/").content.decode()
    assert f"version = {{{release()['version']}" in html


@EVERY_PAGE
def test_a_link_has_words_that_can_be_heard(page: Page) -> None:
    """A formula alone is not read out as the name of a link."""
    for link in re.findall(r"<a [^>]*>(.*?)</a>", html_of(page), re.DOTALL):
        words = re.sub(r"<math.*?</math>|<[^>]+>", "", link, flags=re.DOTALL)
        assert words.strip(), link
