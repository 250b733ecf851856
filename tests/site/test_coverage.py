"""Everything that the first three parts have to teach is on the page that it belongs to."""

import re
from html import unescape

import pytest

from concepts.pages import Page, book

BOOK = book("en")
# Of each page what it covers, and words or numbers without which it would not say so.
WANTED = {
    "weighted-average": {
        "A1": r"Nothing is picked, and nothing is important", "C3": r"columns add up to whatever",
        "L8": r"gorilla",
    },
    "by-hand": {"C1": r"softmax", "C2": r"0\.5035.*0\.2483", "C3": r"0\.8471, 0\.8471, 1\.3057"},
    "before-attention": {
        "A2": r"vectors of the same size.*vanishes", "A5": r"longest path between two tokens",
        "B9": r"looked like an alignment", "L6": r"step",
    },
    "scoring": {
        "B1": r"additive", "B2": r"scaled dot product", "B3": r"general", "B4": r"concat is additive",
        "B5": r"cosine",
    },
    "soft-hard-local": {
        "B6": r"monotonic.*predictive", "B7": r"deterministic and smooth", "B8": r"REINFORCE.*baseline",
    },
    "sqrt-dk": {
        "C4": r"lead", "C5": r"standard deviation", "C6": r"8,886,111.*0\.99999989", "C7": r"LayerNorm",
        "L5": r"temperature",
    },
    "self-and-cross": {"D1": r"three learned matrices", "D7": r"cross-attention", "E1": r"equivariance"},
    "masks": {"D6": r"top left.*bottom right"},
    "multi-head": {
        "D2": r"concat", "D3": r"25\.8", "D4": r"Clark",
        "D5": r"BERT-base 768 12 64 BERT-large 1,024 16 64 LLaMA-7B 4,096 32 128 "
              r"LLaMA-65B 8,192 64 128 GPT-3 12,288 96 128",
        "L9": r"head",
    },
    "sdpa-in-code": {"C8": r"dozen lines and nine mistakes"},
    "transformer": {"A4": r"residual", "D8": r"post", "D9": r"encoder.*decoder", "D11": r"28\.4"},
    "gpt-and-bert": {
        "D10": r"n tokens, n predictions.*15 % of the tokens.*80 %.*10 %.*76\.8.*no parameter changes"
               r".*nothing to design.*no source",
    },
    "positions": {
        "E2": r"nothing of m and n but their difference", "E3": r"The table ends",
        "E12": r"no gradient flows into them",
    },
    "rope": {
        "E4": r"enter only as their difference", "E5": r"cut as neighbours, joined as halves",
        "L10": r"turned before it is cached.*compute angles in float32",
    },
    "alibi": {
        "E6": r"1/2, 1/4, 1/8 and so on to 1/256.*power of two below.*0\.7071, 0\.3536, 0\.1768, 0\.0884",
        "E7": r"sinusoidal.*rises the first Transformer.*learned.*no vector BERT.*T5 bias.*600 tokens.*"
              r"LLaMA, Qwen.*ALiBi.*flat.*BLOOM.*MPT.*none.*Jamba",
    },
    "long-context": {"E8": r"interpolation", "E9": r"82,68\d", "E10": r"YaRN", "E11": r"dynamic"},
    "quadratic": {"F1": r"quadratic|four times", "F2": r"sparse", "K8": r"linear"},
    "memory-hierarchy": {
        "H1": r"four transfers, 128 MiB of the 130", "H2": r"108 × 192 KB = 20\.25 MiB.*19 TB/s",
        "H4": r"is 12\.5 at.*and 3\.1 at", "L7": r"operations to a byte, which is 153 on an A100",
    },
    "online-softmax": {
        "H5": r"above 11\.09 is infinite.*above 88\.72", "H6": r"merged in any order.*block.*5\.93.*0\.94",
    },
    "flash-attention": {
        "H3": r"recomput", "H7": r"15 ?%", "H8": r"740", "H9": r"exact", "H10": r"scaled_dot",
        "H11": r"256",
    },
    "kv-cache": {
        "F3": r"never change when the text goes on.*computes no score twice",
        "F4": r"Two vectors, a key and a value, for each token, layer and head",
        "F5": r"MHA 2,560 10 GiB – – as it is, GQA with 8 heads 320 1\.25 GiB – – were it MQA 40 160 MiB"
        r".*138 GB.*80 GB",
        "F6": r"Llama 3 70B 320 1\.25 GiB 10 GiB 40 GiB",
    },
    "decode-bandwidth": {
        "F7": r"reads all weights, and the whole cache of each sequence.*An eighth of the cache gives nearly",
    },
    "mqa-gqa-mla": {
        "G1": r"multi-query", "G2": r"1/8|an eighth", "G3": r"5 ?%", "G4": r"Falcon", "G5": r"interleave",
    },
    "kv-compression": {"F8": r"KIVI.*H2O|H2O.*KIVI"},
    "inference-memory": {"F9": r"16\.06 GB.*16\.60 GB\. A 24 GB card holds that"},
}  # fmt: skip
WRITTEN = [BOOK.pages[slug] for slug in WANTED if slug in BOOK.pages]


def words_of(page: Page) -> str:
    html = "".join(piece for piece in page.pieces if isinstance(piece, str))
    html = re.sub(r'<span class="term-means".*?</span>', "", html)
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html)))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.slug)
def test_a_page_covers_what_belongs_to_it_and_mentions_it(page: Page) -> None:
    assert set(page.covers) == WANTED[page.slug].keys()
    for name, said in WANTED[page.slug].items():
        assert re.search(said, words_of(page), re.IGNORECASE | re.DOTALL), f"{name}: /{said}/"


def test_pages_of_the_first_three_parts_are_those_that_cover_something() -> None:
    listed = {entry.slug for part in BOOK.parts[:3] for entry in part.entries}
    assert listed == WANTED.keys()
