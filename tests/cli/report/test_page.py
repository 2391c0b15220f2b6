"""The page: complete and valid, of one run or several, with names escaped."""

from html.parser import HTMLParser

from trainer.cli.report.page import metric_names, render
from trainer.cli.report.run_data import Confusion, Run
from trainer.config.directions import Directions
from trainer.runs.ledger import CATEGORIES, TimeSummary
from trainer.runs.status import RunStatus, State

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
    "lineage": [
        {
            **MACHINE,
            "argv": ["train.py", "seed=1"],
            "changes": [{"key": "seed", "before": 0, "now": 1}],
        }
    ],
}


def make(label="a-1", **options):
    secs = {**dict.fromkeys(CATEGORIES, 0.0), "step": 30.0, "start": 10.0}
    curves = {
        ("train", "loss"): [(1, 2.0), (10, 1.0)],
        ("test", "loss"): [(10, 0.9)],
        ("test", "accuracy"): [(10, 0.75), (20, 0.5)],
    }
    curves |= {("train", "learning_rate"): [(1, 0.1)], ("test", "recall/7"): [(10, 0.5)]}
    values = {
        "record": RECORD,
        "directions": Directions({"loss": "min", "accuracy": "max"}, "accuracy"),
        "config": {"seed": 0},
        "curves": curves,
        "time": TimeSummary(secs, 2),
    }
    outcome = RunStatus(State.DONE, 20, {"loss": 0.4, "accuracy": 0.5})
    return Run(f"runs/{label}", label, **{"outcome": outcome, **values, **options})


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


def test_page_of_one_run_is_complete():
    content = page(
        make(confusion=Confusion(20, ["cat", "dog"], [[8, 2], [0, 10]]), crash="what happened")
    )
    texts = set(content.texts)
    assert {
        "a-1: report", "Run", "done", "0.5000", "0.7500", "at 10", "0:40", "75 %", "Curves",
        "loss", "accuracy", "learning rate", "75 % steps, 25 % start", "cat", "dog", "8", "10",
        "python train.py 'name=a b'", "python train.py seed=1", "; changed seed: 0 → 1",
        "here, Python 3.11", "tensorflow 2.21.0", "CPU:0", "abc", ", with uncommitted changes",
        "what happened",
    } <= texts  # fmt: skip
    assert "What differs in the configuration" not in texts
    assert ("open", None) in content.attributes


def test_page_of_several_runs_compares_them():
    runs = [
        make(),
        make("b-2", config={"seed": 5}),
        make("c-3", outcome=RunStatus(State.FAILED, 5, {}, "ValueError: no")),
    ]
    content = page(*runs)
    texts = set(content.texts)
    assert {
        "3 runs", "ValueError: no", "5 / 20", "–", "What differs in the configuration", "seed",
        "0", "5",
    } <= texts  # fmt: skip
    backgrounds = {
        value
        for name, value in content.attributes
        if name == "style" and value.startswith("background:#")
    }
    assert len(backgrounds) >= 3
    assert ("open", None) not in content.attributes


def test_page_shows_run_without_files():
    empty = Run("runs/x", "x", problems=["run.json cannot be read: ValueError: no"])
    content = page(empty)
    assert {
        "x",
        "waiting",
        "There is no curve yet.",
        "run.json cannot be read: ValueError: no",
    } <= set(content.texts)
    assert page(empty, make(), empty)


def test_changed_record_hides_no_run():
    assert "accuracy" in page(make(record={"argv": 5}), make(record={"lineage": [{}]})).texts


def test_page_fetches_nothing_and_runs_only_its_script():
    bad = make(
        EVIL,
        outcome=RunStatus(State.FAILED, 1, {EVIL: 0.5}, EVIL),
        config={EVIL: EVIL},
        record={
            **RECORD,
            "argv": ["train.py", EVIL],
            "host": EVIL,
            "devices": [EVIL],
            "versions": {EVIL: EVIL},
            "git": {"sha": EVIL},
        },
        curves={("test", EVIL): [(1, 1.0)]},
        confusion=Confusion(1, [EVIL, "b"], [[1, 0], [0, 1]]),
        crash=EVIL,
        problems=[EVIL],
    )
    text = render([bad, make()])
    content = Page(text)
    assert content.tags.count("script") == 1
    assert "<script>alert" not in text
    assert not {"link", "img", "iframe", "object"} & set(content.tags)
    assert not [
        name
        for name, _ in content.attributes
        if name.startswith("on") or name in ("src", "srcset", "xlink:href")
    ]
    assert all(value.startswith("#run-") for name, value in content.attributes if name == "href")
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_table_leaves_out_metrics_of_single_classes():
    assert metric_names([make()]) == ["accuracy", "loss"]


def test_samples_are_pictures_within_the_page():
    shown = page(make(samples=b"\x89PNG picture"))
    assert "Generated examples" in shown.texts
    assert ("src", "data:image/png;base64,iVBORyBwaWN0dXJl") in shown.attributes
    (policy,) = [value for _, value in shown.attributes if "default-src" in (value or "")]
    assert "img-src data:" in policy
    assert "Generated examples" not in page(make()).texts


def test_figures_of_both_splits_stand_side_by_side():
    curves = {
        ("validation", "accuracy"): [(10, 0.625), (20, 0.5)],
        ("test", "accuracy"): [(20, 0.4375)],
    }
    outcome = RunStatus(
        State.DONE, 20, {"accuracy": 0.5}, split="validation", test={"accuracy": 0.4375}
    )
    texts = page(make(curves=curves, outcome=outcome)).texts
    assert {"test 0.4375", "at 10"} <= set(texts)
    assert any(text.startswith("0.6250") for text in texts)
