"""The book over REST."""

from django.test import Client

from concepts.pages import book


def test_every_page_is_listed_with_what_it_covers(client: Client) -> None:
    answer = client.get("/api/v1/concepts")
    assert answer.status_code == 200
    found = {concept["slug"]: concept for concept in answer.json()["concepts"]}
    assert list(found) == list(book("en").pages)
    by_hand = found["by-hand"]
    assert by_hand["covers"] == ["C1", "C2", "C3"]
    assert by_hand["part"] == 1
    assert by_hand["prerequisites"] == ["weighted-average"]
    assert "sqrt-dk" in by_hand["next"]
    assert by_hand["sources"][0]["url"] == "https://arxiv.org/abs/1706.03762"
    for concept in found.values():
        assert client.get(concept["url"]).status_code == 200


def test_the_answer_is_as_described(client: Client) -> None:
    from tests.api.helpers import validator

    document = client.get("/api/v1/schema/", headers={"Accept": "application/json"}).json()
    validator(document, "Concepts").validate(client.get("/api/v1/concepts").json())


def test_an_unknown_token_is_refused_here_too(client: Client, db: None) -> None:
    answer = client.get("/api/v1/concepts", headers={"Authorization": "Bearer al_wrong"})
    assert answer.status_code == 401
