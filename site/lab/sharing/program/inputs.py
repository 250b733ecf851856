"""Where the numbers come from: typed, drawn again from a seed, or read from the file of the run."""

from typing import Any

import numpy as np

from kernels.spec.model import InputSpec
from kernels.spec.run import LENGTHS
from kernels.spec.values import ROUNDED
from lab.sharing.program.facts import Facts, Lines, Unsayable
from lab.sharing.program.literals import literal

NUMPY = {"float32": "float32", "float16": "float16", "bfloat16": "float32", "float64": "float64"}
WHAT_IS_DRAWN = {
    "normal": ("Standard normal numbers", "[NormalDist().inv_cdf(x) for x in uniform]"),
    "peaked": ("Normal numbers, three times as wide", "[3 * NormalDist().inv_cdf(x) for x in uniform]"),
}


def is_drawn(facts: Facts, name: str) -> bool:
    """Whether the program draws an input again. Of float64 it would not be the last bit: Python's inverse of
    the normal distribution agrees with the recipe's to a few units in the last place."""
    given = facts.spec.inputs[name]
    return given.seed is not None and not (facts.spec.dtype == "float64" and given.distribution != "uniform")


def is_read(facts: Facts, name: str) -> bool:
    is_typed = name in facts.sent or name in LENGTHS or not facts.spec.inputs[name].elements
    return not is_drawn(facts, name) and not is_typed


def reads(facts: Facts) -> bool:
    return any(is_read(facts, name) for name in facts.spec.inputs)


def distributions(facts: Facts) -> list[str]:
    drawn = (given for name, given in facts.spec.inputs.items() if is_drawn(facts, name))
    return list(dict.fromkeys(given.distribution or "normal" for given in drawn))


def drawing(facts: Facts) -> Lines:
    """The functions that draw."""
    lines: Lines = []
    found = distributions(facts)
    for distribution in found:
        name = drawer(distribution, found)
        lines += ["", "", f"def {name}(name, shape, seed):"]
        if distribution == "uniform":
            lines += [
                '    """Numbers from −1 to 1, as the lab draws them: the same on every machine."""',
                *words(),
                "    return ((words >> np.uint64(11)) * 2.0**-52 - 1.0).reshape(shape)",
            ]
        else:
            what, how = WHAT_IS_DRAWN[distribution]
            lines += [
                f'    """{what}, as the lab draws them: the same on every machine."""',
                *words(),
                "    uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52",
                f"    return np.array({how}).reshape(shape)",
            ]
    return lines


def words() -> Lines:
    return [
        '    digest = hashlib.sha256(f"attention-lab/v1/{name}".encode()).digest()',
        '    key = np.array([seed, int.from_bytes(digest[:8], "little")], dtype=np.uint64)',
        "    words = np.random.Philox(key=key, counter=0).random_raw(math.prod(shape))",
    ]


def drawer(distribution: str, among: list[str]) -> str:
    return "draw" if len(among) == 1 else f"draw_{distribution}"


def rounding(facts: Facts) -> Lines:
    dtype = facts.spec.dtype
    if dtype == "float64":
        how = "torch.tensor(np.asarray(numbers, np.float64))"
    elif dtype == "bfloat16":
        how = "torch.tensor(np.asarray(numbers, np.float32)).bfloat16().double()"
    else:
        how = f"torch.tensor(np.asarray(numbers, np.{NUMPY[dtype]})).double()"
    told = (
        "In float64."
        if dtype == "float64"
        else f"Rounded to {dtype} as the engine saw them, then in float64."
    )
    return ["", "", "def tensor(numbers):", f'    """{told}"""', f"    return {how}"]


def opening(facts: Facts) -> Lines:
    """The file, where something is read from it."""
    if not reads(facts):
        return []
    return [
        "# Too many numbers to be typed: first get the file of the run,",
        f"# curl -o {facts.file} '{facts.file_address}'",
        f'run = np.load("{facts.file}")',
    ]


def inputs(facts: Facts) -> Lines:
    lines = [f"# {axes(facts)}"]
    for name, given in facts.spec.inputs.items():
        lines += one(facts, name, given)
    return lines


def axes(facts: Facts) -> str:
    """Of q, k and v, as they came."""
    spec = facts.spec
    if spec.is_latent:
        return "Queries, latents that all heads share, and what makes keys and values of them."
    if spec.is_packed:
        return "[batch, length, heads · dimension]"
    if spec.is_paged:
        return "Queries [batch, heads, length, dimension]; pages [number, size, heads, dimension]."
    return f"[{', '.join(('batch', 'heads', 'length', 'dimension')[4 - spec.rank :])}]"


def one(facts: Facts, name: str, given: InputSpec) -> Lines:
    if name in LENGTHS or name == "block_table":
        return whole_numbers(facts, name)
    if is_drawn(facts, name):
        draw = drawer(given.distribution or "normal", distributions(facts))
        source = f'{draw}("{name}", {shape(given.shape)}, seed={given.seed})'
    elif not given.elements:  # a list does not say how wide nothing is
        kind = ", bool" if given.dtype == "bool" else ""
        source = f"np.zeros({shape(given.shape)}{kind})"
    elif name in facts.sent:
        return assigned(facts, name, facts.sent[name].tolist())
    else:
        source = f'run["{name}"]'
    return [f"{name} = {wrapped(facts, name).format(source)}"]


def whole_numbers(facts: Facts, name: str) -> Lines:
    values: Any = facts.lengths.get(name, facts.sent.get(name))
    given = facts.spec.inputs[name]
    if not given.elements:
        return [f"{name} = torch.zeros({shape(given.shape)}, dtype=torch.long)"]
    if values is None:
        return [f'{name} = torch.tensor(run["{name}"])']
    whole = values.astype(np.int64).tolist()
    return f"{name} = torch.tensor({literal(whole, len(name) + 16)})".split("\n")


def wrapped(facts: Facts, name: str) -> str:
    """What is around the numbers of an input: a mask is not rounded to the dtype."""
    if name in ROUNDED:
        return "tensor({})"
    if name != "attn_mask":
        raise Unsayable(f"{name} is no input of softmax attention")
    if facts.spec.inputs[name].dtype == "bool":
        return "torch.tensor({})"
    return "torch.tensor(np.asarray({}, np.float32)).double()"


def assigned(facts: Facts, name: str, values: Any) -> Lines:
    around = wrapped(facts, name)
    start = f"{name} = {around.partition('{}')[0]}"
    return f"{name} = {around.format(literal(values, len(start)))}".split("\n")


def shape(lengths: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, lengths))}{',' if len(lengths) == 1 else ''})"
