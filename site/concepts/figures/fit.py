"""Whether a model fits a card: its parts piled up against the card's memory, and the question turned round.

The controls make the body of a REST request (`question`), and the figure computes from that body what REST
answers: it is one question, asked in two places.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import Links, grids, layer_run, listings, parts, stacks
from concepts.figures.controls import Choice, Menu, Number, Reading
from concepts.figures.explorable import Explorable, Readings, Values
from concepts.figures.listings import Line
from concepts.figures.numbers import show
from kernels.sizing.gpus import Gpu, gpus
from kernels.sizing.inverse import MAX_BATCH, MAX_LEN, Fit, divides, longest, most_sequences, which_fit
from kernels.sizing.layers import Model
from kernels.sizing.memory import Workload, per_gpu_parts
from kernels.sizing.models import models, read_model
from kernels.sizing.questions import parse_question
from kernels.sizing.storage import GB, GIB

CARDS = ("1", "2", "4", "8")
MOST_CARDS = int(CARDS[-1])
ASIDE = 1.4  # GB: the 1,343 MiB that [@hfanatomy] found taken on a V100 before any model was loaded
COUNTED_AS = ("weights", "cache", "activations", "logits", "overhead")
STEPS: dict[str, dict[str, Any]] = {
    "token": {"q_len": 1},
    "prompt": {"q_len": "len"},
    "all": {"q_len": "len", "logits": "all"},
}
JSON_WIDTH = 64  # characters of a line of a command


def question(values: Values) -> dict[str, Any]:
    """The body of POST /estimates/memory."""
    body = {
        "model": values["model"],
        "gpu": values["gpu"],
        "gpus": int(values["cards"]),
        "weights_dtype": values["weights"],
        "dtype": values["cache"],
        "len": values["n"],
        "batch": values["batch"],
        **STEPS[values["step"]],
        "overhead_bytes": round(values["aside"] * GB),
    }
    if values["weights"] == "own":  # left out, the model's own config decides
        del body["weights_dtype"]
    return body


def turned_round(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /estimates/fit that looks for the longest text."""
    return {"find": "len", **{name: value for name, value in body.items() if name != "len"}}


@dataclass(frozen=True)
class Answer:
    """What was asked, and the bytes of each part on the fullest card."""

    model: Model
    load: Workload
    gpu: Gpu
    sizes: Mapping[str, int]

    @property
    def needed(self) -> int:
        return sum(self.sizes.values())

    @property
    def left(self) -> int:
        """Negative: so much is missing."""
        return self.gpu.memory_bytes - self.needed

    @cached_property
    def longest(self) -> int:
        return longest(self.model, self.load, self.gpu.memory_bytes)

    @cached_property
    def most(self) -> int:
        return most_sequences(self.model, self.load, self.gpu.memory_bytes)

    @cached_property
    def cards(self) -> tuple[Fit, ...]:
        return which_fit(self.model, self.load)


def answer(values: Values) -> Answer:
    asked = parse_question(question(values), "memory")
    if asked.gpu is None:
        raise ValueError("a question without a card")
    model, load = asked.read.model, asked.load
    return Answer(model, load, asked.gpu, per_gpu_parts(model, load))


class FitChecker(Explorable):
    name = "fit"
    title = gettext_lazy("The figure: what a model needs, against what a card has")
    controls = (
        Menu(
            "model",
            gettext_lazy("Model"),
            "llama-3-8b",
            tuple((slug, model.title) for slug, model in models().items()),
        ),
        Menu(
            "gpu",
            gettext_lazy("Card"),
            "rtx-4090",
            tuple((slug, gpu.title) for slug, gpu in gpus().items()),
        ),
        Choice("cards", gettext_lazy("Cards that share it"), "1", tuple((n, n) for n in CARDS)),
        Choice(
            "weights",
            gettext_lazy("Bits of a weight"),
            "bfloat16",
            (
                ("bfloat16", "16"),
                ("int8", "8"),
                ("int4", "4"),
                ("own", gettext_lazy("as published")),
            ),
        ),
        Choice(
            "cache",
            gettext_lazy("Bits of the cache"),
            "float16",
            (("float16", "16"), ("fp8_e4m3", "8"), ("int4", "4")),
        ),
        Number("n", gettext_lazy("Tokens, n"), 4096, 1, 1_048_576, is_log=True),
        Number("batch", gettext_lazy("Texts, B"), 1, 1, 4096, is_log=True),
        Number("aside", gettext_lazy("Set aside, O"), ASIDE, 0, 40, step=0.1, unit="GB"),
        Choice(
            "step",
            gettext_lazy("Computed at once"),
            "token",
            (
                ("token", gettext_lazy("one token")),
                ("prompt", gettext_lazy("the whole text")),
                ("all", gettext_lazy("the whole text, all logits")),
            ),
        ),
    )

    def read(self, params: Mapping[str, str]) -> Readings:
        """As they are typed, but for cards that cannot share the model's heads evenly."""
        readings = dict(super().read(params))
        model, cards = readings["model"].value, int(readings["cards"].value)
        if divides(read_model(model).model, cards):
            return readings
        shown = max(n for n in map(int, CARDS) if n < cards and divides(read_model(model).model, n))
        told = _(
            "%(model)s cannot be shared by %(cards)d cards: its heads do not divide."
            " The figure shows %(shown)d."
        )
        words = told % {"model": models()[model].title, "cards": cards, "shown": shown}
        return readings | {"cards": Reading(str(shown), str(shown), {"": words})}

    # --- What it says ---------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        found = answer(values)
        return format_html(
            '<div class="fit">{}<div class="split">{}{}{}{}</div>{}</div>',
            stacks.svg(self.stack(values, found), self.sentence(values)),
            self.listed(found),
            self.inverse(values, found),
            self.examples(links),
            self.cards(values, found, links),
            self.commands(values, links),
        )

    def stack(self, values: Values, found: Answer) -> stacks.Stack:
        above = _("%(card)s: %(size)s GB") % {"card": found.gpu.title, "size": capacity(found.gpu)}
        if int(values["cards"]) > 1:
            above = _("one of %(count)s %(card)s: %(size)s GB") % {
                "count": values["cards"],
                "card": found.gpu.title,
                "size": capacity(found.gpu),
            }
        below = _("needed: %(size)s GB") % {"size": gb(found.needed)}
        sizes = [float(found.sizes[name]) for name in COUNTED_AS]
        return stacks.Stack(sizes, float(found.gpu.memory_bytes), above, below)

    def listed(self, found: Answer) -> SafeString:
        words = {
            "weights": _("weights"),
            "cache": _("cache and states"),
            "activations": _("activations"),
            "logits": _("logits"),
            "overhead": _("set aside"),
        }
        rows = [
            (
                format_html("{}{}", stacks.key(number), words[name]),
                gb(found.sizes[name]),
                gib(found.sizes[name]),
                percent(found.sizes[name] / found.gpu.memory_bytes),
            )
            for number, name in enumerate(COUNTED_AS)
        ]
        total = (
            _("needed"),
            gb(found.needed),
            gib(found.needed),
            percent(found.needed / found.gpu.memory_bytes),
        )
        caption = _("On each card, as 10⁹ and as 2³⁰ bytes")
        heads = (_("part"), "GB", "GiB", _("of the card"))
        return grids.framed(parts.listing(caption, heads, rows, total), caption)

    def inverse(self, values: Values, found: Answer) -> SafeString:
        context = found.model.context
        mine = next(fit for fit in found.cards if fit.gpu == found.gpu)
        batch = values["batch"]
        long = ngettext("the longest text", "the longest of each of %(count)s texts", batch)
        rows = [
            (long % {"count": f"{batch:,}"}, at_most(found.longest, MAX_LEN)),
            (_("the model was made for"), f"{context:,}" if context else "–"),
            (_("the most texts of %(n)s tokens") % {"n": f"{values['n']:,}"}, at_most(found.most, MAX_BATCH)),
            (_("the fewest of these cards"), fewest(mine)),
        ]
        caption = _("The question turned round")
        return grids.framed(parts.listing(caption, (_("what fits"), ""), rows), caption)

    def examples(self, links: Links) -> SafeString:
        rows = []
        for changed in EXAMPLES:
            values = {**self.usual, **changed}
            found = answer(values)
            rows.append(
                (
                    format_html('<a href="{}">{}</a>', self.address(links, values), self.named(values)),
                    cards_named(int(values["cards"]), found.gpu),
                    gb(found.needed),
                    _("yes") if found.left >= 0 else _("no"),
                )
            )
        caption = _("Examples; a link sets the figure")
        heads = (_("model and weights"), _("cards"), _("GB on each"), _("fits"))
        table = grids.framed(parts.listing(caption, heads, rows), caption)
        return format_html('<div class="examples">{}</div>', table)

    def named(self, values: Values) -> str:
        bits = {"bfloat16": _("16 bits"), "int8": _("8 bits"), "int4": _("4 bits"), "own": _("as published")}
        told = _("%(model)s, %(bits)s") % {
            "model": models()[values["model"]].title,
            "bits": bits[values["weights"]],
        }
        if values["batch"] > 1:
            return _("%(told)s, %(batch)s texts") % {"told": told, "batch": values["batch"]}
        if values["n"] != self.usual["n"]:
            return _("%(told)s, %(n)s tokens") % {"told": told, "n": f"{values['n']:,}"}
        return told

    def cards(self, values: Values, found: Answer, links: Links) -> SafeString:
        rows = []
        for fit in found.cards:
            count = min(fit.count or MOST_CARDS, MOST_CARDS)
            href = self.address(links, values, gpu=fit.gpu.slug, cards=str(count))
            name = format_html('<a href="{}">{}</a>', href, fit.gpu.title)
            rows.append((name, capacity(fit.gpu), fewest(fit)))
        caption = _("How many of each card it takes; a link sets the figure")
        heads = (_("card"), _("GB of one"), _("fewest"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def commands(self, values: Values, links: Links) -> SafeString:
        body = question(values)
        lines = [
            *command(links.origin + reverse("api:estimate_memory"), body),
            *command(links.origin + reverse("api:estimate_fit"), turned_round(body)),
        ]
        caption = _("The same two questions, asked by a program")
        return format_html(
            '<p class="figure-links"><span>{}</span><a href="{}">{}</a><a href="{}">{}</a></p>{}',
            caption,
            reverse("api:docs"),
            _("The API, described"),
            reverse("api:estimates"),
            _("What it estimates"),
            listings.listing(caption, [Line(text) for text in lines]),
        )

    def sentence(self, values: Values) -> str:
        found, cards = answer(values), int(values["cards"])
        needs = ngettext(
            "%(model)s with %(texts)s of %(n)s tokens needs %(need)s GB (%(gib)s GiB), and the card has"
            " %(have)s GB:",
            "%(model)s with %(texts)s of %(n)s tokens needs %(need)s GB (%(gib)s GiB) on each of %(cards)d"
            " cards, which have %(have)s GB:",
            cards,
        )
        if found.left >= 0:
            verdict = _("it fits, %(left)s GB are left, and up to %(reach)s would fit.")
        elif found.longest:
            verdict = _("%(left)s GB are missing; up to %(reach)s would fit.")
        else:
            verdict = _("%(left)s GB are missing, and no length fits.")
        texts = ngettext("a text", "%(count)s texts", values["batch"])
        reach = ngettext("%(found)s tokens", "%(found)s tokens each", values["batch"])
        return f"{needs} {verdict}" % {
            "model": models()[values["model"]].title,
            "texts": texts % {"count": f"{values['batch']:,}"},
            "n": f"{values['n']:,}",
            "cards": cards,
            "need": gb(found.needed),
            "gib": gib(found.needed),
            "have": capacity(found.gpu),
            "left": gb(abs(found.left)),
            "reach": reach % {"found": at_most(found.longest, MAX_LEN)},
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        found = answer(values)
        return {
            "bytes": dict(found.sizes),
            "needed": found.needed,
            "card": found.gpu.memory_bytes,
            "fits": found.left >= 0,
            "longest": found.longest,
            "most_texts": found.most,
            "request": question(values),
        }

    def picture(self, values: Values) -> str:
        return stacks.document(self.stack(values, answer(values)), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """What a layer of the model does for one token, as large as the lab takes it."""
        return layer_run.fields(values["model"], values["n"], values["cache"])


EXAMPLES: Sequence[dict[str, Any]] = (
    {},
    {"batch": 64},
    {"weights": "int4"},
    {"model": "llama-2-70b", "gpu": "a100-80-sxm"},
    {"model": "llama-2-70b", "gpu": "a100-80-sxm", "cards": "2"},
    {"model": "llama-2-70b", "gpu": "a100-80-sxm", "weights": "int4"},
    {"model": "llama-3.1-8b", "n": 131_072},
    {"model": "mixtral-8x7b", "gpu": "a100-80-sxm"},
    {"model": "gpt-oss-20b", "gpu": "l4", "weights": "own"},
    {"model": "deepseek-v3", "gpu": "h200", "cards": "8", "weights": "own"},
)


def command(address: str, body: Mapping[str, Any]) -> list[str]:
    """A call of curl, a line each."""
    first, *others = textwrap.wrap(json.dumps(body), JSON_WIDTH, break_long_words=False)
    lines = [f"curl -s {address} \\", "  -H 'Content-Type: application/json' \\", f"  -d '{first}"]
    lines += [f"    {line}" for line in others]
    lines[-1] += "'"
    return lines


def cards_named(count: int, gpu: Gpu) -> str:
    return gpu.title if count == 1 else f"{count}\u202f×\u202f{gpu.title}"


def fewest(fit: Fit) -> str:
    """How many of a card hold the model, as far as this figure counts."""
    if fit.count is None or fit.count > MOST_CARDS:
        return _("more than %(most)d") % {"most": MOST_CARDS}
    return str(fit.count)


def at_most(found: int, limit: int) -> str:
    """What was found, up to the most that is looked for."""
    if not found:
        return _("none")
    return _("%(found)s or more") % {"found": f"{found:,}"} if found == limit else f"{found:,}"


def capacity(gpu: Gpu) -> str:
    """Gigabytes that a card is sold with."""
    return show(gpu.memory_gb, 1)


def gb(size: float) -> str:
    return amount(size / GB)


def gib(size: float) -> str:
    return amount(size / GIB)


def amount(value: float) -> str:
    """With two decimals; of what they cannot show, that it is less."""
    return "<\u202f0.01" if 0 < value < 0.005 else f"{value:,.2f}"


def percent(share: float) -> str:
    return "<\u202f0.1\u202f%" if 0 < share < 0.0005 else f"{show(100 * share, 1)}\u202f%"


FIGURE = FitChecker()
