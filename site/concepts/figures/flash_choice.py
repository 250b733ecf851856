"""Which kernels PyTorch may run for a call, which it chooses, and which package of FlashAttention could; by
`kernels.sdpa_backends`."""

from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, listings, parts
from concepts.figures.controls import Choice, Menu, Number, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.listings import Line
from kernels.sdpa_backends import (
    BACKENDS,
    CUDNN,
    DEVICES,
    DTYPES,
    EFFICIENT,
    FLASH,
    MATH,
    PACKAGES,
    Call,
    chosen,
    order,
    package_refusals,
    refusals,
)

REASONS = {
    "device": gettext_lazy("it is for GPUs"),
    "ampere": gettext_lazy("needs an Ampere GPU or a newer one"),
    "half": gettext_lazy("takes float16 and bfloat16 alone"),
    "bfloat16": gettext_lazy("no bfloat16 before Ampere"),
    "256": gettext_lazy("heads of 256 numbers at most"),
    "128": gettext_lazy("heads of 128 numbers at most (256 with a newer cuDNN, on Hopper and B200)"),
    "multiple of 8": gettext_lazy("the width of a head must be a multiple of 8"),
    "multiple of 4": gettext_lazy("the width of a head must be a multiple of 4"),
    "mask": gettext_lazy("takes no mask tensor"),
    "square": gettext_lazy("is_causal only with as many queries as keys"),
    "training": gettext_lazy("no gradients at this width on this GPU"),
    "dropout": gettext_lazy("no dropout on a CPU"),
    "sixteenths": gettext_lazy("dropout in sixteenths alone"),
    "family": gettext_lazy("its README does not list this GPU"),
}
EVERY, OLD = "every", "old"
ENABLED: dict[str, tuple[str, ...]] = {
    EVERY: BACKENDS,
    OLD: BACKENDS,  # enable_flash=True leaves the others enabled
    "flash": (FLASH,),
    "efficient": (EFFICIENT,),
    "cudnn": (CUDNN,),
    "math": (MATH,),
}


class Backends(Explorable):
    name = "backends"
    title = gettext_lazy("The figure: which kernel may run, and which does")
    controls = (
        Menu("device", gettext_lazy("Device"), "a100", [(slug, one.title) for slug, one in DEVICES.items()]),
        Choice("dtype", gettext_lazy("Numbers"), "bfloat16", [(name, name) for name in DTYPES]),
        Number("dim", gettext_lazy("Numbers in a head, head_dim"), 128, 1, 512),
        Choice(
            "mask",
            gettext_lazy("Mask"),
            "causal",
            [
                ("none", gettext_lazy("none")),
                ("causal", gettext_lazy("is_causal=True")),
                ("mask", gettext_lazy("attn_mask, a tensor")),
            ],
        ),
        Switch("square", gettext_lazy("As many queries as keys"), True),
        Switch("train", gettext_lazy("Training: a gradient is needed"), False),
        Switch("drop", gettext_lazy("Dropout of 0.1"), False),
        Menu(
            "enabled",
            gettext_lazy("What the program says of backends"),
            EVERY,
            [
                (EVERY, gettext_lazy("nothing")),
                ("flash", gettext_lazy("sdpa_kernel: flash alone")),
                ("efficient", gettext_lazy("sdpa_kernel: efficient alone")),
                ("cudnn", gettext_lazy("sdpa_kernel: cuDNN alone")),
                ("math", gettext_lazy("sdpa_kernel: math alone")),
                (OLD, gettext_lazy("the old sdp_kernel(enable_flash=True)")),
            ],
        ),
    )

    def call(self, values: Values) -> Call:
        return Call(
            DEVICES[values["device"]],
            values["dtype"],
            values["dim"],
            values["mask"],
            values["square"],
            values["train"],
            values["drop"],
        )

    def chosen(self, values: Values) -> str | None:
        return chosen(self.call(values), ENABLED[values["enabled"]])

    def view(self, values: Values, links: Links) -> SafeString:
        code = _("The program")
        return format_html(
            '{}<div class="split backends"><div>{}</div><div>{}</div></div>',
            listings.listing(code, program(values)),
            self.table(values),
            self.packages(values),
        )

    def table(self, values: Values) -> SafeString:
        call, runs = self.call(values), self.chosen(values)
        enabled, asked = ENABLED[values["enabled"]], order(call.device)
        rows = []
        for name in (*asked, *(name for name in BACKENDS if name not in asked)):
            why = [str(REASONS[reason]) for reason in refusals(name, call)]
            if name not in enabled:
                why.append(_("the program shuts it"))
            state = _("✓ runs") if name == runs else _("✓ could") if not why else _("✗ no")
            rows.append((name, format_html("{}", state), format_html("{}", "; ".join(why))))
        caption = _("Backends of PyTorch, in the order in which they are asked")
        return grids.framed(parts.listing(caption, ("", "", _("why not")), rows), caption)

    def packages(self, values: Values) -> SafeString:
        call = self.call(values)
        rows = []
        for package in PACKAGES:
            why = [str(REASONS[reason]) for reason in package_refusals(package, call)]
            state = _("✗ no") if why else _("✓ could")
            rows.append((package.title, format_html("{}", state), format_html("{}", "; ".join(why))))
        caption = _("FlashAttention itself, as packages")
        return grids.framed(parts.listing(caption, ("", "", _("why not")), rows), caption)

    def sentence(self, values: Values) -> str:
        runs, call = self.chosen(values), self.call(values)
        why = "; ".join(str(REASONS[reason]) for reason in refusals(FLASH, call))
        words = {"device": call.device.title, "runs": runs, "why": why}
        if runs is None:
            return (
                _(
                    "On %(device)s PyTorch raises an error: no backend that the program allows can compute"
                    " this."
                )
                % words
            )
        if runs == FLASH:
            return _("On %(device)s PyTorch runs FLASH_ATTENTION.") % words
        if not why:
            return _("On %(device)s PyTorch runs %(runs)s; FLASH_ATTENTION could compute this too.") % words
        return _("On %(device)s PyTorch runs %(runs)s. Why not FLASH_ATTENTION: %(why)s.") % words

    def numbers(self, values: Values) -> dict[str, Any]:
        call = self.call(values)
        return {
            "chosen": self.chosen(values),
            "order": order(call.device),
            "refusals": {name: refusals(name, call) for name in BACKENDS},
            "packages": {one.title: package_refusals(one, call) for one in PACKAGES},
        }

    def picture(self, values: Values) -> str:
        return listings.picture(self.sentence(values), program(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """PyTorch's function on the lab's CPU, beside which `flash` is our own kernel."""
        shape = {"batch": 1, "heads": 1, "q_len": 64, "head_dim": min(values["dim"], 256)}
        return [
            ("engine", "sdpa"),
            ("dtype", values["dtype"]),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
            ("seed", "1"),
            *([("causal", "on")] if values["mask"] == "causal" else []),
        ]


def program(values: Values) -> list[Line]:
    """What the choices are in Python; nothing of it is wrong but the old way."""
    arguments = ["q", "k", "v"]
    if values["mask"] == "causal":
        arguments.append("is_causal=True")
    if values["mask"] == "mask":
        arguments.append("attn_mask=mask")
    if values["drop"]:
        arguments.append("dropout_p=0.1")
    call = f"out = F.scaled_dot_product_attention({', '.join(arguments)})"
    enabled = ENABLED[values["enabled"]]
    if values["enabled"] == EVERY:
        return [Line("import torch.nn.functional as F"), Line(""), Line(call)]
    if values["enabled"] == OLD:
        opened = Line("with torch.backends.cuda.sdp_kernel(enable_flash=True):  # FutureWarning", "wrong")
        return [
            Line("import torch"),
            Line("import torch.nn.functional as F"),
            Line(""),
            opened,
            Line(f"    {call}"),
        ]
    return [
        Line("import torch.nn.functional as F"),
        Line("from torch.nn.attention import SDPBackend, sdpa_kernel"),
        Line(""),
        Line(f"with sdpa_kernel(SDPBackend.{enabled[0]}):"),
        Line(f"    {call}"),
    ]


FIGURE = Backends()
