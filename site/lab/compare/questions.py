"""Questions about somebody else's code that a small computation answers, and the inputs that tell."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from kernels.arrays import generate

SEED = 5


@dataclass(frozen=True)
class Question:
    """`shapes`: of q, and of k and v. The attention is what the answer is looked for around."""

    slug: str
    question: Promise
    about: Promise
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    attention: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """Of the run that somebody else's output is held against; numbers short enough to be typed."""
        queries, keys = self.shapes
        inputs = {
            name: np.round(
                generate(name, SEED, queries if name == "q" else keys, "normal", "float64"), 1
            ).tolist()
            for name in ("q", "k", "v")
        }
        return {"engine": "flash", "inputs": inputs, "attention": self.attention, "return": ["out"]}


QUESTIONS = (
    Question(
        "causal-alignment",
        gettext_lazy("Which causal alignment does this model use?"),
        gettext_lazy(
            "With as many queries as keys nobody can tell. With 3 queries and 5 keys, as when a cache holds "
            "two tokens already, bottom right lets the last query see every key, and top left only the first "
            "three."
        ),
        ((1, 1, 3, 4), (1, 1, 5, 4)),
        {"is_causal": True},
    ),
    Question(
        "rope-pairing",
        gettext_lazy("Which dimensions does its RoPE turn together?"),
        gettext_lazy(
            "Checkpoints come in both kinds: halves (dimension i with i + d/2) and neighbours (2i with 2i + "
            "1). Rotate q and k at positions 0 to 3 with theta 10,000, then attend without a mask."
        ),
        ((1, 1, 4, 8), (1, 1, 4, 8)),
        {"rope": {"style": "half"}},
    ),
    Question(
        "mask",
        gettext_lazy("Is its mask causal, a padding mask, or the wrong way round?"),
        gettext_lazy(
            "Ask for causal attention over 5 tokens. What comes back says whether the future was hidden, "
            "whether a mask of true and false was read the other way round, or whether nothing was hidden at "
            "all."
        ),
        ((1, 1, 5, 4), (1, 1, 5, 4)),
        {"is_causal": True},
    ),
    Question(
        "window",
        gettext_lazy("Does its sliding window count the token itself?"),
        gettext_lazy(
            "A window of w keys is w before the token in some programs, and w with the token in others. Ask "
            "for causal attention over 7 tokens that sees 2 tokens back."
        ),
        ((1, 1, 7, 4), (1, 1, 7, 4)),
        {"is_causal": True, "window": [2, None]},
    ),
    Question(
        "grouped-heads",
        gettext_lazy("Which key head does each query head read?"),
        gettext_lazy(
            "With 4 query heads and 2 key heads, consecutive groups read key heads 0, 0, 1, 1, and tiled "
            "ones 0, 1, 0, 1."
        ),
        ((1, 4, 3, 4), (1, 2, 3, 4)),
        {},
    ),
    Question(
        "scale",
        gettext_lazy("Does it divide by √d, by d, or not at all?"),
        gettext_lazy("Attend over 4 tokens of dimension 8, and hand in what comes back."),
        ((1, 1, 4, 8), (1, 1, 4, 8)),
        {},
    ),
)
BY_SLUG = {question.slug: question for question in QUESTIONS}
