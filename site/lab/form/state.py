"""What a form holds before anybody fills it in, and what becomes of that when another engine is chosen.

A state is a query string: that of a link, of a fork, or of a submission.
"""

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict

from kernels.registry import Engine
from kernels.spec.declared import accepts
from lab.form import given, offers, options, settings, texts
from lab.form.offers import ARRAYS

DEFAULTS: dict[str, Any] = {
    "engine": "flash",
    "dtype": "float32",
    "device": "auto",
    "source": "matrices",
    "q": "[[1, 0],\n [0, 1],\n [1, 1]]",
    "k": "[[1, 0],\n [0, 1],\n [1, 1]]",
    "v": "[[1, 0],\n [0, 2],\n [2, 2]]",
    "seed": "7",
    "distribution": "normal",
    "batch": "1",
    "heads": "4",
    "q_len": "64",
    "head_dim": "32",
    "past_len": "16",
    "d_nope": "32",
    "d_rope": "16",
    "d_c": "64",
    "d_v": "32",
    "channels": "32",
    "states": "16",
    "q_name": "q",
    "k_name": "k",
    "v_name": "v",
    "alignment": "bottom_right",
    "warmup": "1",
    "iters": "5",
}
SHOWN_FOR = "shown_for"  # the engine whose fields a page had, which need not be the one that was then chosen
SHOWN_SOURCE = "shown_source"  # likewise
# What links of before called some options.
FORMER_NAMES = {"block_m": options.control("block_m"), "block_n": options.control("block_n")}


def to_query(values: Mapping[str, Any]) -> QueryDict:
    query = QueryDict(mutable=True)
    for name, value in values.items():
        query.setlist(name, value if isinstance(value, list) else [value])
    return query


def of_link(query: Mapping[str, Any]) -> QueryDict:
    """The state that a link describes. What it leaves out has its default."""
    asked = query if isinstance(query, QueryDict) else to_query(query)
    state = asked.copy()
    if "source" not in asked and "seed" in asked and not set(ARRAYS) & set(asked):
        state["source"] = "seed"
    for name in asked:
        if name in FORMER_NAMES:
            state.setlist(FORMER_NAMES[name], asked.getlist(name))
        if name.startswith("in_") and given.how(name[3:]) not in asked:
            state[given.how(name[3:])] = "text"
    engine = engine_of(state)
    for name, values in usual_state(engine, state).lists():
        if name not in state:
            state.setlist(name, values)
    return state


def engine_of(state: Mapping[str, Any]) -> Engine:
    """The engine whose fields the form has: the one that was chosen, where there is such."""
    known = offers.every_engine()
    return known.get(str(state.get("engine", "")), known[DEFAULTS["engine"]])


def usual_state(engine: Engine, state: Mapping[str, Any] | None = None) -> QueryDict:
    """Every field of the form at its default, for the source and the options that a state has chosen."""
    state = state or {}
    usual = to_query(DEFAULTS)
    sources = offers.sources(engine)
    if usual["source"] not in sources:
        usual["source"] = sources[0]
    usual.setlist("returns", offers.usual_returns(engine))
    for name, schema in engine.options.items():
        usual[options.control(name)] = texts.text_of(schema["default"])
    for name, text in settings.beginnings(state).items():
        usual[name] = text
    chosen = {**usual.dict(), **{name: state[name] for name in state if name.startswith(options.PREFIX)}}
    taken = engine.inputs_taken(options.chosen(engine.options, chosen))
    source = str(state.get("source") or "")
    family = offers.family(source if source in sources else str(usual["source"]))
    for name in given.required(engine, family, taken) - set(ARRAYS):
        for control, text in given.usual(name).items():
            usual[control] = text
    return usual


def settle(state: QueryDict, engine: Engine, usual: QueryDict) -> bool:
    """Make a state, perhaps of a page that had the fields of another engine, one of this engine: of results
    it keeps those that the engine has, of the other's options those that it takes as they are, and the source
    where the engine has it. True where the page had other sources."""
    before = offers.every_engine().get(str(state.get(SHOWN_FOR, "")))
    asked = [name for name in state.getlist("returns") if name]
    kept = [name for name in asked if name in offers.results(engine)]
    had_the_usual = before is not None and set(asked) == set(offers.usual_returns(before))
    if asked and (had_the_usual or not kept):
        kept = usual.getlist("returns")
    state.setlist("returns", kept)
    for name, schema in engine.options.items():
        control = options.control(name)
        value = options.value_of(schema, str(state.get(control, "")))
        is_of_another = before not in (None, engine) and not accepts(schema, value)
        if control not in state or is_of_another:
            state.setlist(control, usual.getlist(control))
    for name in usual:
        if name not in state and name.startswith(("how_", "in_", "pattern_", "scaling_")):
            state.setlist(name, usual.getlist(name))
    state[SHOWN_FOR] = engine.name
    known = offers.sources(engine)
    if state.get("source") not in known and (before is not None or state.get("source") in offers.SOURCES):
        state.setlist("source", usual.getlist("source"))
    shown, source = str(state.get(SHOWN_SOURCE, "")), str(state.get("source", ""))
    if shown and offers.family(shown) is not offers.family(source):  # the page had no fields for these inputs
        for name in usual:
            if name not in state:
                state.setlist(name, usual.getlist(name))
    return before is not None and offers.sources(before) != known
