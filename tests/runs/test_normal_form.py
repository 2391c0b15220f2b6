"""Absent options have their defaults: an upgrade renames no run, and refuses none."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from trainer.cli.compose import compose
from trainer.config import loading, schema
from trainer.config.options import targets
from trainer.runs import identity
from trainer.runs.identity import Change, changes, leaves, run_name

GOLDEN = Path(__file__).with_name("golden_identities.yaml")
IDENTITIES = yaml.safe_load(GOLDEN.read_text())

MODEL = "def net(input_shape, num_classes, *, width: int = 8{}):\n    ...\n"
DATA = "RATE = 0.5\n\n\ndef data(*, rate: float = RATE{}):\n    ...\n"
TASK = "class Task:\n    def __init__(self, smoothing: float = 0.0{}):\n        ...\n"
USERS = ["model=mine", "dataset=mine", "task=mine"]


@dataclasses.dataclass
class LongerTrain(schema.Train):
    """A section with an option more."""

    extra: int = schema.key(3, "")


@dataclasses.dataclass
class Longer(schema.Experiment):
    """The schema with an option more, and another in a section."""

    train: LongerTrain = schema.key(LongerTrain, "")  # noqa: RUF009
    extra: str = schema.key("none", "")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's model, dataset and task: what composes with them, and what adds options to each."""
    monkeypatch.syspath_prepend(tmp_path)
    for group, target in (("model", "net.net"), ("dataset", "data.data"), ("task", "task.Task")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"_target_: user_{target}\n")

    def write(more=""):
        for name, text in (("net", MODEL), ("data", DATA), ("task", TASK)):
            (tmp_path / f"user_{name}.py").write_text(text.format(more))

    write()
    return lambda *overrides: compose([*USERS, *overrides], tmp_path), write


@pytest.fixture
def longer_schema(monkeypatch):
    """Return a function that adds options with defaults to the schema."""

    cached = identity._schema_defaults

    def extend():
        monkeypatch.setattr(loading, "Experiment", Longer)
        monkeypatch.setattr(identity, "Experiment", Longer)
        cached.cache_clear()

    yield extend
    cached.cache_clear()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if number % 4 else ())
        for number, command in enumerate(IDENTITIES)
    ],
)
def test_identity_of_a_command_is_forever(command):
    name = run_name(compose(command.split()))
    assert name.rpartition("-")[2] == IDENTITIES[command], (
        f"{command} names another run: {name}. Before the first release, change {GOLDEN.name}"
    )


def test_golden_identities_are_forty_different_ones():
    assert len(set(IDENTITIES.values())) == len(IDENTITIES) >= 40
    groups = {re.split("[.=]", word)[0] for command in IDENTITIES for word in command.split()}
    assert groups >= {*schema.GROUPS} - {"search", "buffer"}


def test_new_option_of_a_users_targets_names_the_same_run(project):
    composed, write = project
    before = composed()
    write(", depth: int = 3, scale: tuple = (1, 2), mode='same'")
    now = composed()
    assert run_name(now) == run_name(before)
    assert changes(leaves(before), leaves(now)) == []
    explicit = composed("+model.depth=3", "+dataset.scale=[1,2.0]", "+task.mode=same")
    assert run_name(explicit) == run_name(before)
    assert changes(leaves(before), leaves(explicit)) == []
    assert targets.defaults("user_data.data")["rate"] == 0.5  # a constant
    other = composed("+model.depth=4")
    assert run_name(other) != run_name(before)
    assert changes(leaves(before), leaves(other)) == [Change("model.depth", 3, 4)]


def test_new_key_of_the_schema_names_the_same_run(longer_schema):
    before = compose(["seed=3"])
    name, values = run_name(before), leaves(before)
    longer_schema()
    now = loading.restore(loading.plain(before))
    assert (now.extra, now.train.extra) == ("none", 3)
    assert run_name(now) == name
    assert changes(values, leaves(now)) == []
    with pytest.raises(LookupError, match="extra has no effect"):
        run_name(dataclasses.replace(now, extra="more"))


def test_default_that_only_an_import_tells_is_none_of_ours(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "opaque.py").write_text("import os\ndef net(a=os.sep, b={1}, c={'d': 1}): ...\n")
    assert targets.defaults("opaque.net") == {}
    assert targets.defaults("missing.net") == {}


def test_option_without_a_value_is_the_engines_default():
    without = loading.plain(compose([]))
    del without["optimizer"]["layer_decay"], without["schedule"]["reference_batch"]
    del without["model"]["dropout"], without["task"]["focal_gamma"]
    restored = loading.restore(without)
    assert run_name(restored) == run_name(compose([]))
    assert changes(leaves(restored), leaves(compose([]))) == []


def test_nodes_in_a_list_have_their_defaults_too():
    node = {"_target_": "trainer.models.mlp.mlp"}
    explicit = {**node, **targets.defaults("trainer.models.mlp.mlp")}
    assert identity.normal([node]) == identity.normal([explicit])
    assert identity.normal([node]) != identity.normal([{**explicit, "activation": "x"}])


def test_fault_of_defaults_alone_still_names_its_run():
    names = [
        run_name(compose(more)) for more in ([], ["+fault.a={at:1}"], ["+fault.a={action:kill}"])
    ]
    assert names[0] != names[1] == names[2]
