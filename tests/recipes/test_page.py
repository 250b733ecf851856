"""Where the client and the recipes are found."""

import hashlib
import re
from html import unescape

import pytest
from django.test import Client

from classroom import recipes

PAGE = "/en/recipes/"


def test_the_client_is_served_with_its_version_and_checksum():
    answer = Client().get("/client/attention_lab.py")
    digest = hashlib.sha256(answer.content).hexdigest()
    assert answer.content == recipes.CLIENT.read_bytes()
    assert answer["X-Checksum-Sha256"] == digest
    assert f'__version__ = "{answer["X-Client-Version"]}"' in answer.content.decode()
    beside = Client().get("/client/attention_lab.py.sha256")
    assert beside.content.decode() == f"{digest}  attention_lab.py\n"


def test_the_page_has_every_recipe_and_all_their_files_with_the_address_of_this_lab():
    answer = Client().get(PAGE, headers={"host": "127.0.0.1:8123"})
    text = unescape(answer.content.decode())
    found = {path.relative_to(recipes.FOLDER).as_posix() for path in recipes.FOLDER.rglob("*.*")}
    assert {path.removesuffix(".md") for path in found if "/" not in path} == set(recipes.RECIPES)
    files = set(re.findall(r'href="(/client/recipes/[^"]+)"', text))
    assert {f"/client/recipes/{path}" for path in found if "/" in path} < files
    assert "/client/recipes/gradescope/run_autograder" in files
    for address in files:
        content = Client().get(address, headers={"host": "127.0.0.1:8123"}).content.decode()
        assert recipes.EXAMPLE not in content
        assert content.strip() in text, "what is shown is what is downloaded"
    assert recipes.EXAMPLE not in text
    assert "http://127.0.0.1:8123/client/attention_lab.py" in text
    assert "<pre><code" not in text, "what is scrolled can be reached by keyboard"


@pytest.mark.parametrize(
    "path",
    ["gradescope/nothing", "python/x", "nothing/x", "gradescope/..", "..%2Frecipes/curl.md", "curl.md/x"],
)
def test_nothing_else_is_served(path):
    assert Client().get(f"/client/recipes/{path}").status_code == 404
