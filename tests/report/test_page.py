"""The page: whole and valid, of one run or of many, with names that want to be more than names."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from trainer.ledger import CATEGORIES, Summary
from trainer.outcome import Outcome, State
from trainer.report.data import Confusion, Run
from trainer.report.page import metric_names, render

VOID = {"meta", "br", "link", "img", "input", "hr"}
EVIL = '<script>alert("x")</script>\'&'
MACHINE = {"host": "here", "python": "3.11", "versions": {"tensorflow": "2.21.0"}}
RECORD = {
    **MACHINE,
    "argv": ["train.py", "name=a b"],
    "git": {"sha": "abc", "diff": "x"},
    "devices": ["CPU:0"],
    "num_replicas": 2,
    "total_steps": 20,
    "lineage": [{**MACHINE, "argv": ["train.py", "seed=1"], "changes": [{"key": "seed", "before": 0, "now": 1}]}],
}


def make(label="a-1", **options):
    secs = {**dict.fromkeys(CATEGORIES, 0.0), "step": 30.0, "start": 10.0}
    curves = {("train", "loss"): [(1, 2.0), (10, 1.0)], ("test", "loss"): [(10, 0.9)], ("test", "accuracy"): [(10, 0.75), (20, 0.5)]}
    curves |= {("train", "learning_rate"): [(1, 0.1)], ("test", "recall/7"): [(10, 0.5)]}
    values = {"record": RECORD, "config": {"seed": 0}, "curves": curves, "time": Summary(secs, 2)}
    outcome = Outcome(State.DONE, 20, {"loss": 0.4, "accuracy": 0.5})
    return Run(Path("runs") / label, label, **{"outcome": outcome, **values, **options})


class Page(HTMLParser):
    """A page, taken apart; it complains of what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.tags, self.attributes = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())


def page(*runs):
    return Page(render(runs))


def test_one_run_is_told_whole():
    found = page(make(confusion=Confusion(20, ["cat", "dog"], [[8, 2], [0, 10]]), crash="what happened"))
    texts = set(found.texts)
    assert {
        "a-1: report",
        "Run",
        "done",
        "0.5000",
        "0.7500",
        "at 10",
        "0:40",
        "75 %",
        "Curves",
        "loss",
        "accuracy",
        "learning rate",
    } <= texts
    assert {"75 % steps, 25 % start", "cat", "dog", "8", "10", "python train.py 'name=a b'", "python train.py seed=1"} <= texts
    assert {
        "; changed seed: 0 → 1",
        "here, Python 3.11",
        "tensorflow 2.21.0",
        "CPU:0",
        "abc",
        ", with uncommitted changes",
        "what happened",
    } <= texts
    assert "What differs in the configuration" not in texts
    assert ("open", None) in found.attributes


def test_several_runs_are_told_apart():
    runs = [make(), make("b-2", config={"seed": 5}), make("c-3", outcome=Outcome(State.FAILED, 5, {}, "ValueError: no"))]
    found = page(*runs)
    texts = set(found.texts)
    assert {"3 runs", "ValueError: no", "5 / 20", "–", "What differs in the configuration", "seed", "0", "5"} <= texts
    backgrounds = {value for name, value in found.attributes if name == "style" and value.startswith("background:#")}
    assert len(backgrounds) >= 3
    assert ("open", None) not in found.attributes


def test_a_run_of_which_nothing_is_known_is_there():
    empty = Run(Path("runs/x"), "x", problems=["run.json cannot be read: ValueError: no"])
    found = page(empty)
    assert {"x", "waiting", "There is no curve yet.", "run.json cannot be read: ValueError: no"} <= set(found.texts)
    assert page(empty, make(), empty)


@pytest.mark.parametrize("record", [{"argv": 5}, {"lineage": [{}]}, {"devices": "x", "argv": [], "git": 5}, {"versions": []}])
def test_a_record_that_somebody_has_changed_hides_no_run(record):
    assert "accuracy" in page(make(record=record)).texts


def test_nothing_is_fetched_and_nothing_but_our_script_runs():
    bad = make(
        EVIL,
        outcome=Outcome(State.FAILED, 1, {EVIL: 0.5}, EVIL),
        config={EVIL: EVIL},
        record={**RECORD, "argv": ["train.py", EVIL], "host": EVIL, "devices": [EVIL], "versions": {EVIL: EVIL}, "git": {"sha": EVIL}},
        curves={("test", EVIL): [(1, 1.0)]},
        confusion=Confusion(1, [EVIL, "b"], [[1, 0], [0, 1]]),
        crash=EVIL,
        problems=[EVIL],
    )
    text = render([bad, make()])
    found = Page(text)
    assert found.tags.count("script") == 1
    assert "<script>alert" not in text
    assert not {"link", "img", "iframe", "object"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "srcset", "xlink:href")]
    assert all(value.startswith("#run-") for name, value in found.attributes if name == "href")
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_metrics_of_single_classes_are_not_in_the_table():
    assert metric_names([make()]) == ["accuracy", "loss"]


def test_a_matrix_of_many_classes_is_a_picture():
    size = 40
    matrix = [[float(x == y) for x in range(size)] for y in range(size)]
    found = page(make(confusion=Confusion(1, [str(number) for number in range(size)], matrix)))
    assert ("aria-label", "confusion of 40 classes") in found.attributes
