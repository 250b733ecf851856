"""A word walked through a layer of the encoder, and one through a layer of the decoder, by `kernels.blocks`.

Four numbers a word, two heads, eight numbers in the network; all drawn with one decimal, nothing learned.
Words have the numbers that they have in `projections`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from concepts.figures.explorable import Values
from concepts.figures.projections import WIDTH, drawn, embedded
from kernels.blocks import Attended, Network, Projections, Step, decoder_layer, encoder_layer, layer_norm
from kernels.scoring.attention import softmax
from kernels.sinusoids import sinusoids

HEADS, WIDER, MOST = 2, 8, 4
TEXT, WRITTEN = ("she", "drinks", "tea"), ("sie", "trinkt")
START, END = "[START]", "[END]"


def projections(name: str) -> Projections:
    return Projections(*(drawn(f"walk/{name}/{letter}", WIDTH, WIDTH, size=0.4) for letter in "qkvo"))


def network(name: str) -> Network:
    return Network(
        drawn(f"walk/{name}/w1", WIDTH, WIDER, size=0.5),
        drawn(f"walk/{name}/b1", WIDER, size=0.3),
        drawn(f"walk/{name}/w2", WIDER, WIDTH, size=0.4),
        drawn(f"walk/{name}/b2", WIDTH, size=0.3),
    )


READER, WRITER, ACROSS = projections("encoder"), projections("decoder"), projections("across")
NETWORKS = network("encoder"), network("decoder")


@dataclass(frozen=True, eq=False)
class Place:
    """A block of the walk, and what the one word that is followed there meets."""

    stack: str  # "encoder" or "decoder"
    part: str  # "in", "self", "cross", "ffn", "final" or "out"
    kind: str  # "in", "sub", "add", "norm" or "out"
    words: tuple[str, ...]  # of this stack
    row: int  # which of them is followed
    out: np.ndarray  # [n, 4]: of all of them; of "out" [1, words at hand]: probabilities
    step: Step | None = None
    source: tuple[str, ...] = ()  # of attention: what keys and values are made of

    @property
    def vector(self) -> np.ndarray:
        """What leaves the block of the word that is followed."""
        return np.asarray(self.out[self.row])


def entering(words: tuple[str, ...]) -> np.ndarray:
    """Embeddings times the root of their width, and positions added: [n, 4]."""
    return np.asarray(WIDTH**0.5 * embedded(words) + sinusoids(np.arange(len(words)), WIDTH))


def walk(values: Values) -> list[Place]:
    is_pre = values["norm"] == "pre"
    read, written = values["text"], (START, *values["written"])
    places: list[Place] = []

    def stack(name: str, words: tuple[str, ...], row: int, steps: Sequence[Step]) -> np.ndarray:
        """All of one stack, and what it ends with."""
        places.append(Place(name, "in", "in", words, row, entering(words)))
        for step in steps:
            source = read if step.part == "cross" else words
            places.append(Place(name, step.part, step.kind, words, row, step.out, step, source))
        out = steps[-1].out
        if is_pre:
            final = Step("final", "norm", out, layer_norm(out))
            places.append(Place(name, "final", "norm", words, row, final.out, final))
            out = final.out
        return out

    steps = encoder_layer(entering(read), READER, NETWORKS[0], heads=HEADS, norm_first=is_pre)
    memory = stack("encoder", read, min(values["place"], len(read)) - 1, steps)
    steps = decoder_layer(
        entering(written), memory, WRITER, ACROSS, NETWORKS[1], heads=HEADS, norm_first=is_pre
    )
    made = stack("decoder", written, len(written) - 1, steps)
    chances = softmax(made[-1:] @ embedded(vocabulary(values)).T)
    places.append(Place("decoder", "out", "out", (written[-1],), 0, chances))
    return places


def vocabulary(values: Values) -> tuple[str, ...]:
    """The words at hand, each once; both languages share a table."""
    return (*dict.fromkeys(word.lower() for word in (*values["text"], *values["written"])), END)


NAMES: dict[tuple[str, str, str], str | Promise] = {
    ("encoder", "self", "sub"): gettext_lazy("Self-attention"),
    ("decoder", "self", "sub"): gettext_lazy("Masked self-attention"),
    ("decoder", "cross", "sub"): gettext_lazy("Cross-attention"),
}
KINDS = {
    "in": gettext_lazy("Embedding, position"),
    "sub": gettext_lazy("Feed-forward network"),
    "add": gettext_lazy("Add"),
    "norm": gettext_lazy("LayerNorm"),
    "out": gettext_lazy("Linear, softmax"),
}
STACKS = {"encoder": gettext_lazy("encoder"), "decoder": gettext_lazy("decoder")}


def name_of(place: Place) -> str:
    return str(NAMES.get((place.stack, place.part, place.kind), KINDS[place.kind]))


def attended(place: Place) -> Attended:
    found = place.step.found if place.step else None
    if not isinstance(found, Attended):
        raise TypeError(f"{place.part} {place.kind} is no attention")
    return found


def size(vector: np.ndarray) -> float:
    """The root mean square of its numbers."""
    return float(np.sqrt(np.square(vector).mean()))
