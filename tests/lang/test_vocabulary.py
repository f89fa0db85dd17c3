import copy
import json

import pytest

from structrl.sims.vocabulary import Param, Predicate, Verb, load_vocabulary, parse_vocabulary, simulators
from structrl.task import parse_task
from tests.lang.toy import FULL, VOCABULARY, VOCABULARY_JSON


def test_reading():
    assert VOCABULARY.predicates["pressed"] == Predicate(
        "pressed", ("button",), "pushed in this step", "m", "<", 0.1, "m", {}, pulse=True
    )
    assert VOCABULARY.verbs["add"] == Verb("add", ("object", "container"), "in", "put in")
    assert VOCABULARY.predicates["near"].params["dist"] == Param("m", 0.05)
    assert VOCABULARY.scenes["lunch"]["box_1"] == ("container", "openable")
    assert VOCABULARY.predicate("add") is VOCABULARY.predicates["in"] is VOCABULARY.predicate("in")
    assert VOCABULARY.predicate("nope") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["verbs"]["add"].update(predicate="nope"), "'add' stands for the unknown predicate 'nope'"),
        (lambda data: data["verbs"]["add"].update(args=["object"]), "'add' has 1 arguments, 'in' 2"),
        (lambda data: data["predicates"]["in"].update(colour="red"), "predicates.in: unknown key 'colour'"),
        (lambda data: data.pop("control_hz"), "control_hz"),
        (lambda data: data["verbs"].update(open={**data["verbs"]["close"]}), "'open' is a verb for 'closed'"),
    ],
)
def test_mistakes_are_named(change, message):
    data = copy.deepcopy(VOCABULARY_JSON)
    change(data)
    with pytest.raises(ValueError, match=message) as error:
        parse_vocabulary(json.dumps(data), "here.json")
    assert str(error.value).startswith("here.json: ")


def test_all_vocabularies_load():
    for sim in simulators():
        assert load_vocabulary(sim).sim == sim
    with pytest.raises(ValueError, match="no simulator 'nope'"):
        load_vocabulary("nope")


def test_the_anchors_mean_the_same_in_the_shipped_vocabulary():
    toy, shipped = parse_task(FULL, vocabulary=VOCABULARY), parse_task(FULL)
    assert toy == shipped
