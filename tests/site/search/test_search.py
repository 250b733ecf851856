"""What a reader finds, and what nobody does."""

import html
import re
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from api.models import owner_of
from classroom import statements
from classroom.checks import library
from concepts.pages import book
from search import documents, finding, plain
from search.documents import CONCEPT, ENDPOINT, MINE, PAPER, PLACE, PROBLEM, TERM, Document, Passage
from search.finding import Hit, Results
from search.index import Index
from workers import search as full_text
from workers.grading.models import Problem
from workers.search import SearchEdition

pytestmark = pytest.mark.django_db


def find(typed: str, kind: str = "", owner: str = "") -> Results:
    return finding.find(finding.clean(typed), "en", owner, kind)


def hits(results: Results, kind: str) -> list[Hit]:
    return [hit for group in results.groups if group.kind == kind for hit in group.hits]


def page(slug: str) -> str:
    return f"/en/concepts/{slug}/"


# --- The page on the subject comes first -----------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "slug"),
    [
        ("√d", "sqrt-dk"),
        ("sqrt(d_k)", "sqrt-dk"),
        ("why divide by sqrt d", "sqrt-dk"),
        ("causal mask", "masks"),
        ("masking", "masks"),
        ("kv cache", "kv-cache"),
        ("KVcache", "kv-cache"),
        ("what is a KV cache?", "kv-cache"),
        ("softmax", "online-softmax"),
        ("soft max", "online-softmax"),
        ("ℓ", "online-softmax"),
        ("multihead", "multi-head"),
        ("multi-head", "multi-head"),
        ("RoPE", "rope"),
        ("rotary", "rope"),
        ("rotery", "rope"),
        ("rotory embeding", "rope"),
        ("alibi", "alibi"),
        ("n^2", "quadratic"),
        ("GQA", "mqa-gqa-mla"),
        ("cross attention", "self-and-cross"),
        ("crossattention", "self-and-cross"),
        ("RoFormer", "rope"),
        ("weigthed averge", "weighted-average"),
        ("positoins", "positions"),
        ("scoring", "scoring"),
        ("memory hierarchy", "memory-hierarchy"),
        ("flash attention", "flash-attention"),
        ("flash atention", "flash-attention"),
        ("flashatention", "flash-attention"),
        ("gpt-2 medium", "models"),
        ("RTX 4090", "gpus"),
    ],
)
def test_the_page_on_the_subject_is_the_first_page(typed: str, slug: str) -> None:
    found = hits(find(typed), CONCEPT)
    assert found, typed
    assert found[0].url == page(slug)


@pytest.mark.parametrize(
    ("typed", "slugs"),
    [
        ("QKᵀ", {"by-hand", "quadratic", "memory-hierarchy", "mqa-gqa-mla"}),
        ("QK^T", {"by-hand", "quadratic", "memory-hierarchy"}),
        ("lse", {"by-hand"}),
        ("d_k", {"sqrt-dk", "multi-head", "self-and-cross"}),
        ("softcap", {"scoring"}),
        ("scaled_dot_product_attention", {"sdpa-in-code", "masks"}),
        ("Vaswani", {"weighted-average", "multi-head", "positions"}),
        ("Attention is all you need", {"weighted-average", "multi-head", "positions"}),
        ("Bahdanu", {"before-attention", "scoring"}),
        ("flash atention", {"online-softmax", "memory-hierarchy"}),
    ],
)
def test_pages_are_found_by_signs_terms_people_and_papers(typed: str, slugs: set[str]) -> None:
    urls = {hit.url for hit in hits(find(typed, CONCEPT), CONCEPT)}
    assert {page(slug) for slug in slugs} <= urls


@pytest.mark.parametrize(
    ("typed", "kind", "url"),
    [
        ("entropy", TERM, "/en/concepts/glossary/#term-entropy"),
        ("softcap", TERM, "/en/concepts/glossary/#term-softcap"),
        ("log-sum-exp", TERM, "/en/concepts/glossary/#term-lse"),
        ("lse", TERM, "/en/concepts/glossary/#term-lse"),
        ("high bandwidth memory", TERM, "/en/concepts/glossary/#term-hbm"),
        ("qurey", TERM, "/en/concepts/glossary/#term-query"),
        ("softcapped scores", PROBLEM, "/en/problems/softcap/"),
        ("divide by the root", PROBLEM, "/en/problems/root-d/"),
        ("POST /runs", ENDPOINT, "/api/v1/docs/#/runs/submit_run"),
        ("kv-cache estimate", ENDPOINT, "/api/v1/docs/#/estimates/estimate_kv_cache"),
        ("presets", PLACE, "/en/lab/presets/"),
        ("which convention", PLACE, "/en/lab/compare/conventions/"),
        ("gradescope", PLACE, "/en/recipes/#gradescope"),
        ("flash kernel", PLACE, "/en/lab/kernels/flash/"),
        ("flash atention", PAPER, "/en/concepts/references/#ref-dao2022"),
        ("block_table", ENDPOINT, "/api/v1/docs/#/runs/submit_run"),
    ],
)
def test_everything_else_is_found_too(typed: str, kind: str, url: str) -> None:
    assert url in [hit.url for hit in hits(find(typed), kind)]


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("Attention is all you need", PAPER),
        ("atention is all you need", PAPER),
        ("softmax", CONCEPT),
        ("√d", CONCEPT),
        ("Vaswani", CONCEPT),
        ("POST /runs", ENDPOINT),
        ("entropy", TERM),
    ],
)
def test_the_kind_that_is_meant_comes_first(typed: str, kind: str) -> None:
    assert find(typed).groups[0].kind == kind


def test_every_page_is_the_first_for_its_own_title() -> None:
    for each in book("en").pages.values():
        assert hits(find(each.title), CONCEPT)[0].url == page(each.slug), each.title


def test_every_page_is_found_by_each_of_its_headings_and_opens_there() -> None:
    for each in book("en").pages.values():
        for heading in each.headings:
            found = [hit for hit in hits(find(heading.text, CONCEPT), CONCEPT) if hit.url == page(each.slug)]
            assert found, (each.slug, heading.text)
            assert heading.id in {place.anchor for place in found[0].places}, (each.slug, heading.text)


def test_what_is_often_said_and_wrong_opens_by_itself() -> None:
    for each in book("en").pages.values():
        for claim in each.claims:
            words = plain.text(claim.words)
            found = [hit for hit in hits(find(words, CONCEPT), CONCEPT) if hit.url == page(each.slug)]
            assert found, words
            assert claim.id in {place.anchor for place in found[0].places}, words


def test_every_page_is_found_by_its_papers_and_who_wrote_them() -> None:
    for each in book("en").pages.values():
        for source in each.sources:
            for typed in (source.title, source.authors.split(",")[0]):
                found = {hit.url for hit in hits(find(typed, CONCEPT), CONCEPT)}
                assert page(each.slug) in found, (each.slug, typed)
            papers = hits(find(source.title, PAPER), PAPER)
            assert f"{page(each.slug)}#ref-{source.key}" in {
                link.url for paper in papers for link in paper.also
            }


def test_every_term_is_found_and_the_page_that_explains_it() -> None:
    shelf = book("en")
    for term in shelf.glossary:
        name = re.sub(r"<[^>]+>", "", html.unescape(term.name))
        assert f"/en/concepts/glossary/#term-{term.slug}" in {
            hit.url for hit in hits(find(name, TERM), TERM)
        }, name
        if term.entry.written and term.entry.slug in shelf.pages:
            assert page(term.entry.slug) in {hit.url for hit in hits(find(name, CONCEPT), CONCEPT)}, name


def test_terms_are_found_with_a_letter_missing_doubled_or_swapped() -> None:
    vocabulary = finding.index("en").written
    for term in book("en").glossary:
        if not (term.name.isalpha() and len(term.name) >= 6):
            continue
        name, middle = term.name, len(term.name) // 2
        slips = {
            name[:middle] + name[middle + 1 :],
            name[:middle] + name[middle] + name[middle:],
            name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :],
        }
        for slip in slips - vocabulary.keys() - {name}:
            found = {hit.url for hit in hits(find(slip, TERM), TERM)}
            assert f"/en/concepts/glossary/#term-{term.slug}" in found, (name, slip)


def test_it_finds_while_one_types() -> None:
    typed = "rotary positions"
    for length in range(3, len(typed) + 1):
        assert hits(find(typed[:length]), CONCEPT)[0].url == page("rope"), typed[:length]


def test_problems_tell_neither_hints_nor_solutions() -> None:
    for hit in documents.documents("en"):
        if hit.kind == PROBLEM:
            text = " ".join(passage.text for passage in hit.passages)
            asked = library.problem(hit.names[0])
            for told in (*asked.hints, asked.solution):
                said = plain.text(str(statements.to_html(told)))
                assert said
                assert said not in text, hit.title
    solution = "def " + "attention"
    assert not [
        hit for hit in hits(find(solution, PROBLEM), PROBLEM) for place in hit.places if "def " in str(place)
    ]


# --- What is shown ----------------------------------------------------------------------------------


def shown(client: Client, typed: str, **headers: str) -> str:
    response = client.get(f"/en/search/?q={quote(typed)}", headers=headers)
    assert response.status_code == 200
    return response.content.decode()


def test_the_words_are_marked_where_they_stand(client: Client) -> None:
    found = shown(client, "causal masks")
    assert "<mark>causal</mark> <mark>mask</mark>" in found
    assert f'href="{page("masks")}#the-formula"' in found


def test_a_letter_marks_no_words_that_begin_with_it(client: Client) -> None:
    marked = re.findall("<mark>(.*?)</mark>", shown(client, "why divide by sqrt d"))
    assert {"divide", "√", "d"} <= set(marked)
    assert not {"do", "does", "did", "decoders", "diag"} & {word.lower() for word in marked}


def test_a_correction_is_told(client: Client) -> None:
    assert "“rotery” stands nowhere here; these are results for <b>rotary</b>." in shown(client, "rotery")
    assert "stands nowhere" not in shown(client, "rotary")


def test_some_of_the_words_are_better_than_nothing(client: Client) -> None:
    found = shown(client, "softmax blorptwang")
    assert "Nothing has all of these words." in found
    assert page("online-softmax") in found


def test_nothing_found_says_where_to_look(client: Client) -> None:
    found = shown(client, "blorptwang")
    assert "Nothing was found for “blorptwang”." in found
    for place in ("/en/#contents", "/en/concepts/glossary/", "/en/problems/", "/api/v1/docs/"):
        assert f'href="{place}"' in found


def test_nothing_typed_shows_what_could_be(client: Client) -> None:
    found = shown(client, "  ")
    assert f'href="/en/search/?q={quote("√d")}"' in found
    for example in finding.EXAMPLES:
        assert find(example).has_all, example


def test_more_of_a_kind_is_a_link(client: Client) -> None:
    found = find("attention")
    group = next(each for each in found.groups if each.kind == CONCEPT)
    assert group.more > 0
    assert "&amp;kind=concept" in shown(client, "attention")
    alone = find("attention", CONCEPT)
    assert [each.kind for each in alone.groups] == [CONCEPT]
    assert len(alone.groups[0].hits) == group.total


def test_htmx_gets_the_results_alone(client: Client) -> None:
    part = shown(client, "softmax", **{"HX-Request": "true"})
    assert "<html" not in part
    assert re.search(r'id="search-status" hx-swap-oob="innerHTML">\d+ results<', part)
    assert "HX-Request" in client.get("/en/search/?q=softmax")["Vary"]


def test_every_page_has_the_search_and_needs_no_javascript_for_it(client: Client) -> None:
    for address in ("/en/", page("rope"), "/en/lab/", "/en/problems/"):
        assert re.search(
            r'<a class="search-open" href="/en/search/"', client.get(address).content.decode()
        ), address
    assert '<form class="search-form" role="search" action="/en/search/" method="get"' in shown(client, "x")


def test_the_short_address_leads_there(client: Client) -> None:
    response = client.get("/search?q=√d&x=%00")
    assert response.status_code == 302
    assert response["Location"].startswith("/en/search/?q=%E2%88%9Ad")
    assert client.get("/search")["Location"] == "/en/search/"


# --- What may be typed ------------------------------------------------------------------------------

HOSTILE = [
    '"', "'", "''", '" OR "', "softmax OR", "NEAR(softmax mask)", "words:softmax", "*", "soft*", "(softmax",
    "softmax)", "^softmax", "-softmax", "softmax AND", "softmax NOT mask", "{words}: x", "a:*", "!softmax",
    "softmax & | <->", "%", "\\", "\\'", "%s", "%(x)s", "\x00", "softmax\x00mask", "\u202esoftmax", "\ufeff",
    "\x00'; DROP TABLE workers_search; --", "\U0001f9e0", "ﬁ", "ǅ", "İ", "ß", "ﷺ", "𝒬𝒦",
    "a\u0301\u0302\u0303", "e" + "\u0301" * 300, "\u0301", "½", "①", "१२", "注意力", "внимание", "קשב",
    "^", "_", "__", "a_", "_a", "-", "’", ".", "...", ",", "<script>alert(1)</script>", "softmax " * 2000,
    "x" * 100_000, "ab" * 120,
    " ".join(f"w{n}" for n in range(500)), "√" * 300, "\ud7ff\ue000\uffff", "aB" * 100,
    "_".join("ab" for _ in range(80)), "-".join("xyz" for _ in range(70)), "A" * 24 + "a" * 24,
]  # fmt: skip


@pytest.mark.parametrize("typed", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_whatever_is_typed_is_answered(client: Client, typed: str) -> None:
    response = client.get("/en/search/", {"q": typed})
    assert response.status_code == 200
    assert "<script>alert" not in response.content.decode()
    assert "\x00" not in response.content.decode()
    part = client.get("/en/search/", {"q": typed, "kind": typed}, headers={"HX-Request": "true"})
    assert part.status_code == 200


@pytest.mark.parametrize(
    "query", ["q=%ff%fe", "q=%ed%a0%80", "q[]=x", "q=a&q=softmax", "kind=mine&q=x", "", "q", "q=%"]
)
def test_whatever_the_address_is_it_is_answered(client: Client, query: str) -> None:
    assert client.get(f"/en/search/?{query}").status_code == 200
    assert client.get(f"/search?{query}").status_code == 302


def test_operators_mean_nothing() -> None:
    assert find("softmax OR mask").total == find("softmax mask").total
    assert find('"softmax"').total == find("softmax").total
    assert find("-softmax").total == find("softmax").total


def test_what_is_typed_is_bounded() -> None:
    assert len(finding.clean("x" * 10_000)) == finding.MOST_TYPED
    assert (
        len(finding.index("en").vocabulary.question(" ".join(f"softmax{n}" for n in range(50))).wanted) <= 16
    )


def test_only_reading(client: Client) -> None:
    assert client.post("/en/search/", {"q": "x"}).status_code == 405
    assert client.post("/search").status_code == 405


# --- What is somebody's -----------------------------------------------------------------------------


def a_problem(owner: str, slug: str, title: str, *, published: bool = False) -> None:
    from django.utils import timezone

    row = Problem.objects.create(owner=owner, slug=slug)
    row.versions.create(
        number=1, body={"title": title}, fingerprint="x", published_at=timezone.now() if published else None
    )


@pytest.fixture
def teachers() -> tuple[User, User]:
    first, second = User.objects.create_user("first"), User.objects.create_user("second")
    a_problem(owner_of(first.pk), "zanzibar", "Zebrafish attention")
    return first, second


def test_a_problem_of_somebodys_own_is_found_by_them_alone(
    client: Client, teachers: tuple[User, User]
) -> None:
    first, second = teachers
    for typed in ("zebrafish", "zanzibar", "zebrafsh", "Zebrafish attention"):
        client.force_login(first)
        assert 'href="/en/classroom/problems/zanzibar/"' in shown(client, typed)
        for other in (second, None):
            client.force_login(other) if other else client.logout()
            found = shown(client, typed)
            assert "zanzibar/" not in found
            assert "Zebrafish <" not in found
            assert "<b>zebrafish</b>" not in found


def test_no_page_links_to_what_others_published(client: Client, teachers: tuple[User, User]) -> None:
    """It is public over REST, but has no page of its own to open."""
    a_problem(owner_of(teachers[0].pk), "quokka", "Quokka attention", published=True)
    client.force_login(teachers[1])
    assert "quokka/" not in shown(client, "quokka")


def test_what_somebody_has_is_kept_by_nobody(client: Client, teachers: tuple[User, User]) -> None:
    client.force_login(teachers[0])
    assert client.get("/en/search/?q=zebrafish")["Cache-Control"] == "private, no-store"
    assert "zebrafish" not in finding.index("en").written


def test_a_title_is_shown_as_it_was_written(client: Client, teachers: tuple[User, User]) -> None:
    a_problem(owner_of(teachers[0].pk), "wombat", "Wombat <img src=x> & co")
    client.force_login(teachers[0])
    found = shown(client, "wombat img")
    assert "<mark>Wombat</mark> &lt;<mark>img</mark> src=x&gt; &amp; co" in found


def test_a_new_title_counts_at_once(client: Client, teachers: tuple[User, User]) -> None:
    client.force_login(teachers[0])
    row = Problem.objects.get(slug="zanzibar")
    row.versions.create(number=2, body={"title": "Platypus attention"}, fingerprint="y")
    assert "zanzibar/" in shown(client, "platypus")
    assert hits(find("zebrafish", owner=row.owner), MINE) == []


# --- Never out of date ------------------------------------------------------------------------------


def test_new_content_is_found_and_old_processes_find_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    old = finding.index("en")
    extra = Document(
        CONCEPT, "/new/", "Wombat attention", passages=(Passage("", "", "a page about wombats"),)
    )
    new = Index("en", (extra, *documents.documents("en")))
    assert new.digest != old.digest
    assert not hits(find("wombat"), CONCEPT)
    monkeypatch.setattr(finding, "index", lambda _language: new)
    assert [hit.url for hit in hits(find("wombat"), CONCEPT)] == ["/new/"]
    assert hits(find("rotary"), CONCEPT)[0].url == page("rope")
    monkeypatch.setattr(finding, "index", lambda _language: old)
    assert not hits(find("wombat"), CONCEPT)
    assert hits(find("rotary"), CONCEPT)[0].url == page("rope")


def test_an_index_that_was_lost_is_made_again() -> None:
    find("rotary")
    SearchEdition.objects.all().delete()
    assert hits(find("rotary"), CONCEPT)[0].url == page("rope")


def test_the_database_is_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_text, "holding", lambda *_, **__: [])
    assert find("softmax").total == 0


def test_every_public_thing_can_be_opened(client: Client) -> None:
    """Once each address without its anchor; an anchor of the book stands on its page."""
    pages: dict[str, str] = {}
    for each in documents.documents("en"):
        address, _, anchor = each.url.partition("#")
        if address not in pages:
            response = client.get(address)
            assert response.status_code == 200, address
            pages[address] = response.content.decode()
        anchors = [] if each.kind == ENDPOINT else [anchor, *(passage.anchor for passage in each.passages)]
        for one in filter(None, anchors):
            assert f'id="{one}"' in pages[address], each.url


def test_reverse_is_in_the_language_of_the_page() -> None:
    assert reverse("search:page") == "/en/search/"
