"""A small vocabulary, the two anchor texts, and hypothesis strategies for syntax trees."""

import json

from hypothesis import strategies as st

from structrl.lang import tree
from structrl.sims.vocabulary import parse_vocabulary

ANCHOR = "group < add(apple, box); add(drink, box) > then close(box)"
FULL = """\
# tasks/tabletop/pack_lunch.task
task pack_lunch
command "Pack the apple and the drink in the lunch box, then close the lid."
sim     tabletop(scene="lunch")          # simulator and its arguments
horizon 240 steps
let     apple = "apple_1"                 # name used below = simulator entity
define  packed(item) = in(item, box) and not grasped(item)
success in(apple, box) and in(drink, box) and closed(box)

plan
  group < add(apple, box) @ 61; packed(drink) @ 58 as drink_in >
  then close(box) @ 44
"""

_PLAIN = {"measure": "m", "op": "<", "threshold": 0.1, "unit": "m", "params": {}, "pulse": False}
VOCABULARY_JSON = {
    "sim": "tabletop",
    "control_hz": 20,
    "has_success": False,
    "predicates": {
        "in": {**_PLAIN, "args": ["object", "container"], "meaning": "inside"},
        "grasped": {**_PLAIN, "args": ["object"], "meaning": "held"},
        "closed": {**_PLAIN, "args": ["openable"], "meaning": "shut"},
        "open": {**_PLAIN, "args": ["openable"], "meaning": "not shut", "excludes": ["closed"]},
        "pressed": {**_PLAIN, "args": ["button"], "meaning": "pushed in this step", "pulse": True},
        "was_pressed": {**_PLAIN, "args": ["button"], "meaning": "pushed some time before"},
        "near": {
            **_PLAIN,
            "args": ["any", "object|container"],
            "meaning": "close by",
            "threshold": 0.05,
            "params": {"dist": {"unit": "m", "default": 0.05}, "angle": {"unit": "rad", "default": 1.0}},
        },
    },
    "verbs": {
        "add": {"args": ["object", "container"], "predicate": "in", "meaning": "put in"},
        "grasp": {"args": ["object"], "predicate": "grasped", "meaning": "take"},
        "close": {"args": ["openable"], "predicate": "closed", "meaning": "shut"},
        "press": {"args": ["button"], "predicate": "pressed", "meaning": "push"},
    },
    "scenes": {
        "lunch": {
            "apple_1": ["object"],
            "drink_1": ["object"],
            "box_1": ["container", "openable"],
            "button_1": ["button"],
            "cup_1": ["object"],
            "cup_2": ["object"],
        }
    },
}
VOCABULARY = parse_vocabulary(json.dumps(VOCABULARY_JSON))

# -- syntax trees -----------------------------------------------------------------------------------------------------
words = st.sampled_from(["apple", "box", "in", "x", "thenx", "A_1", "_", "steps1", "q7"]).map(tree.Word)
names = st.sampled_from(["add", "in", "closed", "orange", "at", "notes", "f"]).map(tree.Word)
labels = st.sampled_from(["one", "two", "group_1"]).map(tree.Word)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=0x1FF, exclude_categories=["C"]), max_size=6).map(
    tree.Text
)
numbers = st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6, allow_nan=False)
plain = numbers.map(tree.Quantity)
quantities = st.builds(tree.Quantity, numbers, st.sampled_from(["mm", "cm", "m", "deg", "rad", "s", "steps", "%"]))
lengths = st.builds(tree.Quantity, st.integers(1, 500), st.just("steps"))
values = words | texts | plain | quantities
keyword_args = st.builds(tree.Keyword, words, values)
calls = st.builds(
    tree.Call, names, st.lists(values, max_size=3).map(tuple), st.lists(keyword_args, max_size=2).map(tuple)
)


def _several(inner, least=2):
    return st.lists(inner, min_size=least, max_size=3).map(tuple)


def _larger(inner):
    """Every kind of node over `inner`: also the nests that the checker refuses."""
    return st.one_of(
        st.builds(tree.Not, inner),
        st.builds(tree.And, _several(inner)),
        st.builds(tree.Or, _several(inner)),
        st.builds(tree.AtLeast, st.integers(0, 3).map(tree.Quantity), _several(inner, 1)),
        st.builds(tree.HeldFor, inner, lengths),
        st.builds(tree.StepsOf, lengths, inner),
        st.builds(tree.Newly, inner),
        st.builds(tree.Then, _several(inner)),
        st.builds(tree.Group, _several(inner, 1)),
        st.builds(tree.Each, words, _several(values, 1), inner),
        st.builds(
            tree.Step, inner, plain | quantities, st.none() | labels, st.none() | plain, st.lists(labels).map(tuple)
        ),
    )


expressions = st.recursive(calls, _larger, max_leaves=12)
items = st.one_of(
    st.builds(tree.TaskName, words),
    st.builds(tree.Command, texts),
    st.builds(tree.Sim, names, st.lists(st.builds(tree.Keyword, words, texts | plain | words), max_size=2).map(tuple)),
    st.builds(tree.Horizon, lengths),
    st.builds(tree.Let, words, texts),
    st.builds(tree.Define, names, st.lists(words, max_size=2).map(tuple), expressions),
    st.builds(tree.Success, expressions),
    st.builds(tree.Fail, expressions),
    st.builds(tree.PlanItem, expressions),
)
documents = st.builds(tree.Document, st.lists(items, max_size=5).map(tuple)) | st.builds(
    lambda body: tree.Document((tree.PlanItem(body),), bare=True), expressions
)
