"""Absent options have their defaults: an upgrade renames no run, and refuses none."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from trainer.cli.compose import compose
from trainer.config import loading, schema
from trainer.config.options import targets
from trainer.runs import migrations, normal_form
from trainer.runs.directory import trained_config
from trainer.runs.identity import Change, changes, run_name
from trainer.runs.migrations import NewDefault, NewName, NewPath
from trainer.runs.normal_form import leaves

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

    caches = (loading._schema, loading._defaults, normal_form._schema_defaults)

    def extend():
        monkeypatch.setattr(loading, "Experiment", Longer)
        monkeypatch.setattr(normal_form, "Experiment", Longer)
        for cached in caches:
            cached.cache_clear()

    yield extend
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def rows(monkeypatch):
    """Return a function that sets the table of migrations."""
    return lambda *table: monkeypatch.setattr(migrations, "ROWS", table)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if number % 4 else ())
        for number, command in enumerate(IDENTITIES)
    ],
)
def test_identity_of_a_command_is_forever(command):
    name = run_name(compose(command.split()))
    assert name.rpartition("-")[2][:8] == IDENTITIES[command], (  # of twelve digits
        f"{command} names another run: {name}. If a default has changed or a target has moved, add "
        f"a row to trainer/runs/migrations.py; if a choice or recipe has other values, change "
        f"{GOLDEN.name}"
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
    assert normal_form.normal([node]) == normal_form.normal([explicit])
    assert normal_form.normal([node]) != normal_form.normal([{**explicit, "activation": "x"}])


def test_fault_of_defaults_alone_still_names_its_run():
    names = [
        run_name(compose(more)) for more in ([], ["+fault.a={at:1}"], ["+fault.a={action:kill}"])
    ]
    assert names[0] != names[1] == names[2]


def test_new_default_is_another_run_and_the_former_one_the_same(rows):
    before = compose(["~model.l2"])
    name = run_name(before)
    # As if the default had been 0.1 when the run was trained.
    rows(
        *migrations.ROWS,
        NewDefault("trainer.models.cnn.cnn", "l2", 0.1),
        NewDefault(None, "seed", 5),
    )
    assert run_name(compose(["~model.l2"])) != name
    explicit = compose(["model.l2=0.1", "seed=5"])
    assert run_name(explicit) == name
    saved = loading.plain(before)
    del saved["seed"]
    restored = loading.restore(migrations.migrated(saved))
    assert changes(leaves(restored), leaves(explicit)) == []
    assert changes(leaves(restored), leaves(before)) == [
        Change("seed", 5, 0), Change("model.l2", 0.1, 0.0)
    ]  # fmt: skip


def test_moved_target_names_the_same_run(rows, tmp_path):
    name = run_name(compose([]))
    old, new = "trainer.models.net.net", "trainer.models.cnn.cnn"
    rows()
    former = loading.plain(compose([]))
    former["model"]["_target_"] = old
    former["callbacks"] = {"a": {"_target_": "x.Y", "nodes": [{"_target_": old}]}}
    rows(NewPath(old, "trainer.models.between.net"), NewPath("trainer.models.between.net", new))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(former))
    values = trained_config(tmp_path)
    assert values["model._target_"] == new
    assert values["callbacks.a.nodes"] == [{"_target_": new}]
    assert run_name(compose([])) != name  # the golden one is of the path before the first row
    assert migrations.first_path(new) == old


def test_renamed_option_names_the_same_run_and_is_read_by_its_new_name(rows, tmp_path):
    command = ["dataset.normalize.mean=[0.5]", "task=contrastive", "task.neighbors=3"]
    renamed = compose(command)
    former = loading.plain(renamed)
    former["dataset"]["normalise"] = former["dataset"].pop("normalize")
    former["task"]["neighbours"] = former["task"].pop("neighbors")
    former["callbacks"] = {"nodes": [former["task"]]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(former))
    values = trained_config(tmp_path)
    assert values["dataset.normalize.mean"] == [0.5]
    assert values["task.neighbors"] == values["callbacks.nodes"][0]["neighbors"] == 3
    assert not any("normalise" in key or "neighbours" in key for key in values)
    # As the command named it before its options were renamed.
    first = migrations.first_keys(leaves(renamed))
    assert first["dataset.normalize.mean"] == "dataset.normalise.mean"
    assert first["task.neighbors"] == "task.neighbours"
    assert first["task.hidden"] == "task.hidden"
    name = run_name(renamed)
    rows(*migrations.ROWS, NewName("trainer.tasks.contrastive.Contrastive", "width", "hidden"))
    assert run_name(renamed) == name  # the default of either name is none of the hash
    assert run_name(compose([*command, "task.hidden=9"])) != name
    default = "trainer.tasks.contrastive.Contrastive", "hidden", 8
    rows(NewDefault("x.y", "former", 3), NewName("x.y", "former", "now"))
    assert migrations.first_default("x.y", "now", 4) == 3
    assert migrations.first_default(*default) == 8


def test_rows_apply_to_what_was_written_before_them_by_the_path_of_that_time(rows):
    rows(
        NewDefault("a.net", "width", 4), NewPath("a.net", "b.net"), NewDefault("b.net", "width", 6)
    )
    assert migrations.first_default("b.net", "width", 8) == 4
    assert migrations.first_default("b.net", "depth", 8) == 8
    old = {"model": {"_target_": "a.net"}}
    for known, width in ((0, 4), (1, 6)):
        now = migrations.migrated({**old, "migrations": known})
        assert now == {"model": {"_target_": "b.net", "width": width}}
