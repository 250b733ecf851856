"""Writing token by token: what a step computes with a cache and without one, what that adds up to, and what
the cache takes."""

import json
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number, Words
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show, show_power
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.projections import KEY_WIDTH, VALUE_WIDTH, W_K, W_Q, W_V, embedded, steps
from concepts.figures.projections import heads as word_heads
from concepts.figures.quadratic import in_bytes, times, tokens
from concepts.figures.scales import ink, sequential, weight_class
from kernels.engines.reference import attend
from kernels.sizing.kv_cache import token_bytes
from kernels.sizing.layers import Attention
from kernels.sizing.lengths import textbook_cost, writing_cost
from kernels.sizing.models import models, read_model
from kernels.sizing.storage import cache_format

MOST = 8
TEXT = ("she", "gave", "him", "tea", "and", "left")
DIGITS = 4
AGAIN = 0.25  # of the scale of weights: how dark a cell is that is computed once more


# -- a step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The newest token's output, and what it took: tokens projected, scores computed, numbers kept."""

    out: np.ndarray  # (2,)
    projected: int
    scores: int
    kept: int


def anew(words: tuple[str, ...]) -> list[Step]:
    """After each word, everything from the first one on."""
    found = []
    for count in range(1, len(words) + 1):
        done = steps(words[:count], words[:count], is_causal=True)
        found.append(Step(done.out[-1], len(done.k), int(np.count_nonzero(done.weights)), 0))
    return found


def cached(words: tuple[str, ...]) -> list[Step]:
    """After each word, its own key and value appended to those that are kept, and its query alone."""
    keys, values, found = np.zeros((0, KEY_WIDTH)), np.zeros((0, VALUE_WIDTH)), []
    for word in words:
        x = embedded((word,))
        keys, values = np.vstack([keys, x @ W_K]), np.vstack([values, x @ W_V])
        out = attend(x @ W_Q, keys, values, scale=KEY_WIDTH**-0.5)
        found.append(Step(out["out"][0], len(x), out["scores"].size, keys.size + values.size))
    return found


class OneStep(Explorable):
    name = "step"
    title = gettext_lazy("The figure: a step of writing, with and without a cache")
    controls = (
        Words("text", gettext_lazy("Words"), TEXT, most=MOST, longest=8),
        Number("step", gettext_lazy("Step: the newest word is number"), 5, 1, MOST),
    )

    def at(self, values: Values) -> int:
        """Which word is the newest: no more than there are."""
        return int(min(values["step"], len(values["text"])))

    def ways(self, values: Values) -> tuple[list[Step], list[Step]]:
        """All steps up to this one, without a cache and with it."""
        words = values["text"][: self.at(values)]
        return anew(words), cached(words)

    def view(self, values: Values, links: Links) -> SafeString:
        without, kept = _("Without a cache"), _("With a cache")
        again = parts.cell(_("again"), heat=weight_class(AGAIN))
        return format_html(
            '{}<p class="figure-links">{}</p>{}',
            grids.panels(
                grids.panel(
                    without,
                    self.grid(values, without, again, again),
                    _("everything anew; of the outputs only the last row is wanted"),
                ),
                grids.panel(
                    kept,
                    self.grid(values, kept, shut(_("kept")), shut("–")),
                    _("one column of keys and values is appended, one row is computed"),
                ),
            ),
            self.moves(values, links),
            self.table(values),
        )

    def grid(self, values: Values, caption: str, key: SafeString, score: SafeString) -> SafeString:
        """First what becomes of keys and values, then a row of scores for each query. `key` and `score`: the
        cells of what an earlier step computed."""
        words = word_heads(values["text"][: self.at(values)])
        newest = len(words) - 1
        new = parts.cell(_("new"), extra="open")
        columns = [key if j < newest else new for j in range(len(words))]
        rows = [
            [parts.cell("") if j > i else (new if i == newest else score) for j in range(len(words))]
            for i in range(len(words))
        ]
        names = [format_html("{}", _("key, value")), *words]
        return grids.framed(parts.table(caption, [columns, *rows], names, words), caption)

    def moves(self, values: Values, links: Links) -> SafeString:
        here, most = self.at(values), len(values["text"])
        back, on = self.address(links, values, step=here - 1), self.address(links, values, step=here + 1)
        items = [format_html('<a href="{}">{}</a> ', back, _("A step back"))] if here > 1 else []
        if here < most:
            items.append(format_html('<a href="{}">{}</a>', on, _("The next step")))
        return parts.join(items)

    def table(self, values: Values) -> SafeString:
        without, kept = self.ways(values)
        both = (without, kept)
        rows = (
            (_("words projected, this step"), [way[-1].projected for way in both]),
            (_("scores, this step"), [way[-1].scores for way in both]),
            (_("words projected, all steps"), [sum(one.projected for one in way) for way in both]),
            (_("scores, all steps"), [sum(one.scores for one in way) for way in both]),
            (_("numbers kept for the next step"), [way[-1].kept for way in both]),
        )
        caption = _("Counted while it was computed")
        heads = (_("of one head and layer"), _("without"), _("with a cache"))
        shown = [(name, *map(str, counts)) for name, counts in rows]
        return grids.framed(parts.listing(caption, heads, shown), caption)

    def sentence(self, values: Values) -> str:
        without, kept = self.ways(values)
        return _(
            "Step %(step)d, “%(word)s”: %(scores)d scores without a cache, %(mine)d with one; in all steps"
            " %(sum)d and %(my_sum)d. The output is %(out)s both times."
        ) % {
            "step": len(kept),
            "word": values["text"][len(kept) - 1],
            "scores": without[-1].scores,
            "mine": kept[-1].scores,
            "sum": sum(one.scores for one in without),
            "my_sum": sum(one.scores for one in kept),
            "out": f"({', '.join(show(float(x), DIGITS) for x in kept[-1].out)})",
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        ways = zip(("without", "with"), self.ways(values), strict=True)
        return {
            name: [
                {"out": one.out.tolist(), "projected": one.projected, "scores": one.scores, "kept": one.kept}
                for one in way
            ]
            for name, way in ways
        }

    def picture(self, values: Values) -> str:
        white, pale, dark = sequential(0), sequential(5), sequential(14)
        count = self.at(values)

        def row(i: int, shade: Any) -> list[tuple[str, str, str]]:
            shades = [white if j > i else (dark if i == count - 1 else shade) for j in range(count)]
            return [("", one.hex, ink(one).hex) for one in shades]

        tables = [
            (name, [row(i, shade) for i in range(count)])
            for name, shade in ((_("Without a cache"), pale), (_("With a cache"), white))
        ]
        return grids.picture(self.sentence(values), tables)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The newest query, key and value, and what is kept of the words before."""
        x = embedded(values["text"][: self.at(values)])
        keys, rows = np.round(x @ W_K, DIGITS).tolist(), np.round(x @ W_V, DIGITS).tolist()
        query = np.round(x[-1:] @ W_Q, DIGITS).tolist()
        fresh = [("q", query), ("k", keys[-1:]), ("v", rows[-1:])]
        past = [("past_key", keys[:-1]), ("past_value", rows[:-1])] if len(x) > 1 else []
        return [
            ("engine", "decode"),
            *((name, json.dumps(numbers)) for name, numbers in fresh),
            *((f"how_{name}", "text") for name, _numbers in past),
            *((f"in_{name}", json.dumps(numbers)) for name, numbers in past),
            *(("returns", name) for name in ("out", "present_key", "present_value")),
        ]


def shut(text: str) -> SafeString:
    """The cell of what is not computed."""
    return parts.cell(text, extra="shut")


# -- all steps -----------------------------------------------------------------------------------------------

LONGEST = 131_072
POINTS = 30


class Writing(Plotted):
    name = "writing"
    title = gettext_lazy("The figure: what writing costs, with and without a cache")
    controls = (
        Number("prompt", gettext_lazy("Tokens of the prompt"), 512, 1, LONGEST, is_log=True),
        Number("new", gettext_lazy("Tokens written"), 512, 1, LONGEST, is_log=True),
        Number("d", gettext_lazy("Width of the model, d"), 4096, 64, 32_768, is_log=True),
    )

    def total(self, values: Values, written: int, *, has_cache: bool) -> int:
        return writing_cost(values["prompt"], written, values["d"], has_cache=has_cache).total

    def last(self, values: Values, *, has_cache: bool) -> int:
        """Of the pass that makes the last token."""
        before = self.total(values, values["new"] - 1, has_cache=has_cache) if values["new"] > 1 else 0
        return self.total(values, values["new"], has_cache=has_cache) - before

    def plot(self, values: Values) -> Plot:
        counts = np.unique(np.geomspace(1, values["new"], POINTS).astype(int)).tolist()
        series = [
            Series(
                name,
                [(n, self.total(values, n, has_cache=has_cache)) for n in counts],
                has_marks=len(counts) < 2,
            )
            for name, has_cache in ((_("without a cache"), False), (_("with a cache"), True))
        ]
        x = Axis(_("tokens written (1K is 1,024)"), tokens, is_log=True, base=2)
        y = Axis(_("operations of a layer, in sum"), partial(show_power, digits=1), is_log=True)
        return series, x, y

    def table(self, values: Values) -> SafeString:
        def row(name: str, without: int, kept: int) -> tuple[str, ...]:
            return name, show_power(without), show_power(kept), times(without / kept)

        prompt = textbook_cost(values["prompt"], values["d"], is_causal=True).total
        rows = [
            row(_("the prompt (prefill)"), prompt, prompt),
            row(_("the last token"), *(self.last(values, has_cache=way) for way in (False, True))),
            row(_("all of them"), *self.sums(values)),
        ]
        caption = _("Operations of a layer, two to a multiply-add")
        heads = (_("for"), _("without"), _("with a cache"), _("ratio"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sums(self, values: Values) -> tuple[int, int]:
        """Without a cache and with it."""
        without, kept = (self.total(values, values["new"], has_cache=way) for way in (False, True))
        return without, kept

    def sentence(self, values: Values) -> str:
        without, kept = self.sums(values)
        told = _(
            "%(new)s tokens after a prompt of %(prompt)s: without a cache %(times)s times the operations."
            " With it, all steps together cost what reading the text once costs."
        )
        if values["new"] == 1:
            told = _(
                "The first token costs the same either way: a pass over the prompt of %(prompt)s tokens."
            )
        return told % {
            "new": f"{values['new']:,}",
            "prompt": f"{values['prompt']:,}",
            "times": show(without / kept, 1),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        without, kept = self.sums(values)
        return {"operations": {"without": without, "with": kept}}


# -- bytes ---------------------------------------------------------------------------------------------------

KIB = 2**10
FORMATS = {"32": "float32", "16": "float16", "8": "int8", "4": "int4"}
SLUGS = (
    "gpt2", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b",
    "mistral-7b-v0.2", "qwen3-8b", "falcon-7b",
)  # fmt: skip


@dataclass(frozen=True)
class Fields:
    """What a configuration says of the cache of a model whose layers are all alike and keep every token."""

    title: str
    layers: int
    kv: int
    width: int


@cache
def fields_of(slug: str) -> Fields:
    mixers = [layer.mixers[0] for layer in read_model(slug).model.layers]
    first = mixers[0]
    if not isinstance(first, Attention) or first.window is not None or set(mixers) != {first}:
        raise ValueError(f"the layers of {slug} do not all keep the same")
    return Fields(models()[slug].title, len(mixers), first.kv_heads, first.head_dim)


class Calculator(Explorable):
    name = "kvbytes"
    title = gettext_lazy("The figure: bytes of a cache, from the fields of a configuration")
    controls = (
        Number("layers", gettext_lazy("Layers"), 80, 1, 512, is_log=True),
        Number("kv", gettext_lazy("Heads of keys and values"), 8, 1, 512, is_log=True),
        Number("width", gettext_lazy("Numbers a head"), 128, 1, 1024, is_log=True),
        Choice(
            "bits",
            gettext_lazy("A number takes"),
            "16",
            (
                ("32", gettext_lazy("32 bits")),
                ("16", gettext_lazy("16 bits")),
                ("8", gettext_lazy("8 bits, with scales")),
                ("4", gettext_lazy("4 bits, with scales")),
            ),
        ),
        Number("length", gettext_lazy("Tokens"), 4096, 1, 1_048_576, is_log=True),
        Number("batch", gettext_lazy("Sequences"), 1, 1, 4096, is_log=True),
    )

    def token(self, values: Values) -> int:
        """Bytes of one token in all layers."""
        kv, width = values["kv"], values["width"]
        return int(values["layers"] * token_bytes(Attention(kv, kv, width, width), self.stored(values)))

    def stored(self, values: Values) -> Any:
        return cache_format(FORMATS[values["bits"]])

    def whole(self, values: Values) -> int:
        return int(self.token(values) * values["length"] * values["batch"])

    def view(self, values: Values, links: Links) -> SafeString:
        return format_html('<div class="split">{}{}</div>', self.chain(values), self.catalogue(values, links))

    def chain(self, values: Values) -> SafeString:
        """Factor after factor, with what it makes."""
        token, whole = self.token(values), self.whole(values)
        vector = self.stored(values).vector(values["width"])
        layer = token // values["layers"]
        rows = [
            (_("a key: %(n)s numbers") % {"n": f"{values['width']:,}"}, "", in_bytes(vector, 2)),
            (_("and a value"), times(2), in_bytes(2 * vector, 2)),
            (_("heads"), times(values["kv"]), in_bytes(layer, 2)),
            (_("layers: a token"), times(values["layers"]), in_bytes(token, 2)),
            (_("tokens: a sequence"), times(values["length"]), in_bytes(token * values["length"], 2)),
            (_("sequences: the cache"), times(values["batch"]), in_bytes(whole, 2)),
        ]
        caption = _("From one key to the whole cache")
        return grids.framed(parts.listing(caption, (_("what"), _("factor"), _("makes")), rows), caption)

    def catalogue(self, values: Values, links: Links) -> SafeString:
        rows = []
        for slug in SLUGS:
            one = fields_of(slug)
            mine = {**values, "layers": one.layers, "kv": one.kv, "width": one.width}
            name = format_html('<a href="{}">{}</a>', self.address(links, mine), one.title)
            product = f"{one.layers}\u202f×\u202f{one.kv}\u202f×\u202f{one.width}"
            whole = in_bytes(self.whole(mine), 2).replace(" ", "\u00a0")
            rows.append((name, product, kib(self.token(mine)), whole))
        caption = _("Models, at these tokens, sequences and bits; a link sets the figure")
        heads = (_("model"), _("layers × heads × numbers"), _("KiB per token"), _("in all"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        told = _("%(token)s KiB per token; %(length)s tokens take %(all)s.")
        if values["batch"] > 1:
            told = _(
                "%(token)s KiB per token; %(length)s tokens in each of %(batch)s sequences take %(all)s."
            )
        return told % {
            "token": kib(self.token(values)),
            "length": f"{values['length']:,}",
            "batch": f"{values['batch']:,}",
            "all": in_bytes(self.whole(values), 2),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"bytes_per_token": self.token(values), "bytes": self.whole(values)}

    def picture(self, values: Values) -> str:
        white = sequential(0)
        rows = [
            [(text, white.hex, ink(white).hex) for text in (str(values["layers"]), str(values["kv"]),
                                                            str(values["width"]), values["bits"])]
        ]  # fmt: skip
        return grids.picture(self.sentence(values), [(_("layers, heads, numbers, bits"), rows)])


def kib(count: int) -> str:
    return f"{round(count / KIB, 2):,.10g}"


FIGURES = (OneStep(), Writing(), Calculator())
