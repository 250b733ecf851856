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
        "L8": r"gorilla.*computes every score in full",
    },
    "by-hand": {
        "C1": r"Z=softmax\(QK⊤d\)V", "C2": r"0\.2483, 0\.2483 and 0\.5035.*\(1\.2552, 1\.5035\)",
        "C3": r"0\.8471, 0\.8471, 1\.3057",
    },
    "before-attention": {
        "A2": r"vectors of the same size.*vanishes.*steps that wait for one another n 1",
        "A5": r"longest path between two tokens n−1 1.*causal", "B9": r"looked like an alignment",
        "L6": r"must forget.*kept for the next token d 2nd",
    },
    "scoring": {
        "B1": r"additive v·tanh\(Wqq\+Wkk\)", "B2": r"dot product q·k .*scaled dot product q·k/√d",
        "B3": r"general q·Wk", "B4": r"concat v·tanh\(W\[q;k\]\).*concat is additive",
        "B5": r"cosine βq·k/\(‖q‖‖k‖\).*(only the|nothing but) direction",
    },
    "soft-hard-local": {
        "B6": r"monotonic \(local-m\): pt=t.*predictive \(local-p\): pt=S(σ|sigmoid)\(vp·tanh\(Wpht\)\)"
              r".*exp\(−\(s−pt\)22σ2\),σ=D2.*standard deviation.*21 keys",
        "B7": r"c=∑jαjvj.*deterministic and smooth",
        "B8": r"s~Categorical\(α\),c=vs.*REINFORCE.*E\[\(Rs−b\)∂lnαs",
    },
    "sqrt-dk": {
        "C4": r"p=11\+\(n−1\)e−g.*lead of 0\.7071 among three: p = 0\.5035.*0\.843.*0\.144.*12\.9 and 16\.4",
        "C5": r"Var\(q·k\)=∑i=1dVar\(qiki\)=d,σ=d", "C6": r"8,886,111.*0\.99999989.*0\.11 millionths",
        "C7": r"variance of 1/d.*2/d.*LayerNorm.*a variance near 1", "L5": r"Boltzmann.*T=√d",
    },
    "self-and-cross": {
        "D1": r"three learned matrices.*Q=XWQ,K=XWK,V=XWV",
        "D7": r"softmax\(XWQ\(EWK\)⊤dk\)EWV.*Bahdanau.*image.*Rombach.*language model.*Alayrac",
        "E1": r"f\(PX\)=Pf\(X\)\. That is equivariance",
    },
    "masks": {"D6": r"Mij=0 if j≤i, else −∞.*padding.*Mij=0 if j≤i\+\(nk−nq\).*top left.*bottom right"},
    "multi-head": {
        "D2": r"Y=Concat\(H1,…,Hh\)WO.*Qi=XWiQ,Ki=XWiK,Vi=XWiV",
        "D3": r"1 512 24\.9 4 128 25\.5 8 64 25\.8 16 32 25\.8 32 16 25\.4",
        "D4": r"next or the previous token.*\[SEP\].*broadly.*86\.8 %.*94\.3 %.*65\.1 %.*syntax.*rare words",
        "D5": r"BERT-base 768 12 64 BERT-large 1,024 16 64 LLaMA-7B 4,096 32 128 "
              r"LLaMA-65B 8,192 64 128 GPT-3 12,288 96 128",
        "L9": r"3,125 .*625 are trees",
    },
    "sdpa-in-code": {"C8": r"dozen lines and nine mistakes"},
    "transformer": {
        "A4": r"Three were at Google Brain.*did not invent attention.*BERT.*T5.*PaLM.*LLaMA.*Gemini",
        "D8": r"its input is added to its output \(add\).*x←LN.x\+Sub.*max"
              r".*normalises after the addition: post-LN",
        "D9": r"Masked self-attention.*Cross-attention.*output of the encoder’s last layer.*Feed-forward",
        "D11": r"base 512, 2,048, 8 100,000 12 h 27\.3 big 1,024, 4,096, 16 300,000 3\.5 days 28\.4",
    },
    "gpt-and-bert": {
        "D10": r"n tokens, n predictions.*15 % of the tokens.*80 %.*10 %.*76\.8.*no parameter changes"
               r".*nothing to design.*no source",
    },
    "positions": {
        "E2": r"Pp,2i=sinpωi,Pp,2i\+1=cospωi ωi=10000−2i/d.*nothing of m and n but their difference",
        "E3": r"BERT has 512 rows.*ALBERT.*1,024.*The table ends",
        "E12": r"\[SG\(hτ−1\);hτ\].*no gradient flows into them.*XLNet",
    },
    "rope": {
        "E4": r"Llama, Qwen and GLM.*θi=b−2i/d.*=q⊤Rn−mk The positions enter only as their difference",
        "E5": r"GPT-J.*GPT-NeoX.*cut as neighbours, joined as halves.*no rotation at all",
        "L10": r"turned before it is cached.*compute angles in float32",
    },
    "alibi": {
        "E6": r"1/2, 1/4, 1/8 and so on to 1/256.*power of two below.*0\.7071, 0\.3536, 0\.1768, 0\.0884",
        "E7": r"sinusoidal.*rises the first Transformer.*learned.*no vector BERT.*T5 bias.*600 tokens.*"
              r"LLaMA, Qwen.*ALiBi.*flat.*BLOOM.*MPT.*none.*Jamba",
    },
    "quadratic": {
        "F1": r"4n2d for the pairs and 24nd2 for the rest.*from n=6d on",
        "F2": r"FlashAttention none in the result; all n2 operations.*a window of w keys, n·w pairs"
              r".*a state of fixed size",
        "K8": r"Up to some 8,000 tokens an exact kernel.*13\.3 %.*At 131,072 tokens it could save 71\.1 %",
    },
    "long-context": {
        "E8": r"Position interpolation.*position 8,191 stands where 1,023\.9 did",
        "E9": r"10,000 to 82,685.*17 still meet new angles.*Without further training, NTK-aware",
        "E10": r"pair 20\.9 to 45\.0.*1\.208 for.*1\.459",
        "E11": r"Dynamic NTK.*larger base.*window.*Is 128K free\? .*No\. The change of angles costs nothing",
    },
    "memory-hierarchy": {
        "H1": r"four transfers, 128 MiB of the 130", "H2": r"108 × 192 KB = 20\.25 MiB.*19 TB/s",
        "H4": r"Θ\(n2d2/M\) instead of Θ\(nd\+n2\).*between d and nd.*is 12\.5 at.*and 3\.1 at",
        "L7": r"operations per byte: 153 on an A100",
    },
    "online-softmax": {
        "H5": r"above 11\.09 is infinite.*above 88\.72", "H6": r"merged in any order.*block.*5\.93.*0\.94",
    },
    "flash-attention": {
        "H3": r"scores and weights are made, used and dropped there, and never written.*a second time, from"
              r".*recomputation.*no key at all",
        "H7": r"1 the MLPerf 1\.1 record 1\.15.*1 existing programs 3 .*2 version 1 1\.7–3\.0"
              r".*2 standard PyTorch 3–10.*3 version 2 1\.5–2\.0.*4 cuDNN 9\.13 up to 1\.3",
        "H8": r"said 740 TFLOP/s.*it says 840 \(85 %\) and 1\.3.*1,613 TFLOP/s, “71 %”",
        "H9": r"66\.6 to 75\.2 GFLOP.*40\.3 to 4\.4 GB, 9\.2 times less.*41\.7 to 7\.3 ms"
              r".*not bit for bit.*In float32, 8 % of the outputs are equal to the last bit",
        "H10": r"with sdpa_kernel\(SDPBackend\.FLASH_ATTENTION\):.*is now an error"
               r".*forces FlashAttention.*FutureWarning in 2\.13",
        "H11": r"Ampere, Ada and Hopper GPUs, in float16 or bfloat16, with heads of at most 256",
    },
    "kv-cache": {
        "F3": r"never change when the text goes on.*computes no score twice",
        "F4": r"Two vectors, a key and a value, for each token, layer and head",
        "F5": r"MHA 2,560 10 GiB – – Llama 2 70B as it is, GQA with 8 heads 320 1\.25 GiB – – "
              r"Llama 2 70B if it were MQA 40 160 MiB.*138 GB.*80 GB",
        "F6": r"Llama 3 70B 320 1\.25 GiB 10 GiB 40 GiB",
    },
    "decode-bandwidth": {
        "F7": r"reads all weights, and the whole cache of each sequence.*t≥W\+BCβ.*67\.4.*5\.27.*0\.66"
              r".*An eighth of the cache gives nearly",
    },
    "mqa-gqa-mla": {
        "G1": r"g=1: MQA, multi-query attention, one head for all.*MQA can cost quality",
        "G2": r"G\(i\)=⌊igh⌋.*in between: GQA.*2,560 KiB as MHA, 320 with its 8 heads, 40 with one",
        "G3": r"key projections of each group by their mean.*took 5 % of the original computation",
        "G4": r"232 query heads share 8.*160 KiB.*Falcon-7B is MQA.*512 KiB"
              r".*only 70B.*Mistral 7B.*Llama 3.* 8 heads",
        "G5": r"kv1 kv1 kv1 kv1 kv2 kv2 kv2 kv2.*layer by layer.*group the queries before the product",
    },
    "kv-compression": {
        "F8": r"off by 9\.1 %.*off by 38 %.*is b\+32/g bits a number.*4 bits, g=32 5 40 5 GiB.*e4m3"
              r".*KIVI leaves them.*StreamingLLM\): the newest and the first 4 stay.*H2O: half.*SnapKV: when"
              r".*gives up FP8.*MQA, GQA, MLA.*CLA.*Sharing prefixes.*Paged attention.*offload",
    },
    "inference-memory": {"F9": r"16\.06 GB.*16\.60 GB\. A 24 GB card holds that"},
}  # fmt: skip
# What is often said and wrong, of each page what it says instead. "…" is what may stand between.
CORRECTED = {
    "weighted-average": ("Nothing is picked", "computes every score in full", "regression … 1964"),
    "by-hand": (
        "(1.2553, 1.5036) … (1.2552, 1.5035) … 1.0001", "differences … ratio", "No smaller … 960 pairs",
    ),
    "before-attention": ("Attention has no vanishing gradients … long path", "Bahdanau et al., 2015"),
    "scoring": ("bilinear", "W[q;k]=Wqq+Wkk", "the same function … number of parameters"),
    "soft-hard-local": ("Xu et al., 2015", "local-p … less"),
    "sqrt-dk": (
        "0.79 … 19 %", "two in a thousand", "4,096 … 0.843 … 131,072 … 0.144",
        "The footnote … The text itself", "divide by d when",
    ),
    "transformer": (
        "arXiv; ICLR 2015", "Three were at Google Brain … Gomez … Toronto … Polosukhin",
        "one machine, with eight GPUs … 27.3 BLEU … three and a half days, 672 GPU-hours against 96",
        "output of the encoder’s last",
    ),
    "long-context": ("were fine-tuned", "rose from 7.20 to more than 1,000", "stretches 4.56 times"),
    "self-and-cross": ("elf-attention is equivariant", "causal mask … PMP⊤≠M", "its width, dv"),
    "masks": ("no causal mask at all", "True adds 1 and False adds 0", "rounded away"),
    "multi-head": (
        "8,388,608 … instead of 1,048,576 … similar", "25.8 with 8 … 25.4 with 32",
        "34.5 % … 26.3 %", "GPT-3 … a band of near tokens",
    ),
    "sdpa-in-code": (
        "causal mask is 2 × 2", "one key where it should see four",
        "The bias is lost, because the causal mask", "adds it a second time",
        "PyTorch refuses", "without device= … CPU", "a row that sees nothing NaN 0",
        "MATH raises … error … applies both",
    ),
    "gpt-and-bert": ("[MASK] is a token",),
    "positions": ("sinusoids get worse … trained with", "without any positions … learn"),
    "rope": (
        "just two numbers … no rotation at all", "distance … both vectors", "catastrophically high",
        "compute angles in float32",
    ),
    "alibi": (
        "August 2021 … ICLR 2022", "The bias is negative, and grows only in size",
        "sinusoidal 18.35 204.42 360.12",
        "ALiBi 17.98 17.92 18.30", "no better",
    ),
    "quadratic": ("between two and four times", "More heads cost more … Not in these products"),
    "memory-hierarchy": (
        "66.6 to 75.2 GFLOP … 40.3 to 4.4 GB … 41.7 to 7.3 ms", "Four trips: S out and in, P out and in",
        "9.2 times … that workload", "A long prompt in a fused kernel waits for arithmetic",
    ),
    "online-softmax": ("No term is left out", "5.93 … 0.94"),
    "flash-attention": (
        "It is equal on paper", "It adds some, 13 %", "True was its default already … FutureWarning",
        "ten times more deviation in BF16", "twice the error of a plain program",
    ),
    "kv-cache": (
        "138 GB … 80 GB … 16 sequences of 4,096 tokens … MHA … 2", "131,072 bytes … 0.5 GiB",
        "A decode step needs the causal mask … stands at the end",
    ),
    "kv-compression": (
        "5 bits, 3.2 times fewer", "FP8 … needs a scale", "Only SnapKV has kept “4719”",
        "It keeps those that were important to the queries so far",
    ),
    "decode-bandwidth": ("the time of reading the cache by eight … 1.07",),
    "mqa-gqa-mla": (
        "GQA, 160 KiB … MQA would have 20", "Falcon-7B is MQA", "first LLaMA is MHA … 512 KiB",
        "only 70B has groups; 7B and 13B are MHA", "Not without uptraining … Falcon-7B and Gemma 2B",
        "November 2019", "authors of Llama 2 give",
    ),
    "inference-memory": (
        "16.60 GB or 15.46 GiB", "2.10 GB (1.96 GiB", "22.0 GB … 16 texts … for 2",
    ),
}  # fmt: skip
WRITTEN = [BOOK.pages[slug] for slug in WANTED]


def words_of(page: Page) -> str:
    html = "".join(piece for piece in page.pieces if isinstance(piece, str))
    html = re.sub(r'<span class="term-means".*?</span>', "", html)
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html)))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.slug)
def test_a_page_covers_what_belongs_to_it_and_mentions_it(page: Page) -> None:
    assert set(page.covers) == WANTED[page.slug].keys()
    for name, said in WANTED[page.slug].items():
        assert re.search(said, words_of(page), re.IGNORECASE | re.DOTALL), f"{name}: /{said}/"


@pytest.mark.parametrize(
    ("slug", "said"), [(slug, said) for slug, claims in CORRECTED.items() for said in claims]
)
def test_a_page_corrects_what_is_often_said(slug: str, said: str) -> None:
    pattern = ".{0,250}?".join(re.escape(part) for part in said.split(" … "))
    assert re.search(pattern, words_of(BOOK.pages[slug]), re.DOTALL), f"{slug}: {said}"


def test_pages_of_the_first_three_parts_are_those_that_cover_something() -> None:
    listed = {entry.slug for part in BOOK.parts[:3] for entry in part.entries}
    assert listed == WANTED.keys()
