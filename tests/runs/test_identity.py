"""Identity: which configurations name the same run, and which changes a run may continue with."""

import copy
import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from trainer.annotations import Free, Semantic, Structural
from trainer.cli.compose import compose
from trainer.config import loading, schema
from trainer.config.options import targets
from trainer.runs import identity
from trainer.runs.identity import (
    Change,
    change_problems,
    changes,
    effect_of,
    leaves,
    names_run,
    run_name,
)

DEFAULT = compose([])
LEAVES = leaves(DEFAULT)
GOLDEN = Path(__file__).with_name("golden_identities.yaml")
IDENTITIES = yaml.safe_load(GOLDEN.read_text())

NET = "def net(input_shape, num_classes, *, width: int = 8{}):\n    ...\n"
DATA = "RATE = 0.5\n\n\ndef data(*, rate: float = RATE{}):\n    ...\n"
TASK = "class Task:\n    def __init__(self, smoothing: float = 0.0{}):\n        ...\n"
USERS = ["model=mine", "dataset=mine", "task=mine"]


def changes_of(*overrides, before=()):
    return changes(
        leaves(compose(list(before))) if before else LEAVES, leaves(compose(list(overrides)))
    )


def problems_of(*overrides, allow=()):
    experiment = compose(list(overrides))
    experiment.resume = "runs/old"
    experiment.resume_allow = list(allow)
    differing = changes(LEAVES, leaves(experiment))
    return change_problems(Path("runs/old"), differing, experiment)


def changed(key):
    """Return the default experiment with another value of one key."""
    container = copy.deepcopy(loading.plain(DEFAULT))
    *parents, last = key.split(".")
    node = container
    for parent in parents:
        node = node[parent]
    value = node[last]
    if isinstance(value, bool):
        node[last] = not value
    elif isinstance(value, int | float):
        node[last] = value + 1
    elif isinstance(value, list):
        node[last] = value[1:] or ["more"]
    elif isinstance(value, dict):
        node[last] = {"more": {} if key == "fault" else 1}
    elif value is None and isinstance(
        getattr(getattr(DEFAULT, key.split(".")[0]), last, None), type(None)
    ):
        node[last] = "4" if key in ("name", "init_from", "checkpoint.best.metric") else 1
    else:
        node[last] = f"{value}x"
    return loading.restore(container)


def test_run_name_is_a_name_and_twelve_hex_digits_the_same_for_equal_values():
    name = run_name(DEFAULT)
    assert re.fullmatch(r"cnn-digits-[0-9a-f]{12}", name)
    assert run_name(compose(["model=softmax", "dataset=synthetic"])).startswith(
        "softmax-synthetic-"
    )
    bare = compose(["~model", "+model._target_=tests.programs.unbuilt.net"])
    assert run_name(bare).startswith("tests.programs.unbuilt.net-digits-")
    explicit = ["name=mine", "seed=0", "model=cnn", "batch.global_size=128", "model.l2=0"]
    for overrides in (explicit, explicit[::-1]):
        assert run_name(compose(overrides)) == name.replace("cnn-digits", "mine")
    assert run_name(loading.restore(loading.plain(DEFAULT))) == name
    steps = [["schedule=step", f"schedule.boundaries=[{step}]"] for step in (10, 20)]
    assert run_name(compose(steps[0])) != run_name(compose(steps[1]))


def test_changed_key_is_shown_with_both_values_and_names_another_run_if_it_is_a_naming_one():
    digest = run_name(DEFAULT)[-12:]
    for key in LEAVES:
        other = changed(key)
        assert (run_name(other)[-12:] != digest) == names_run(key, LEAVES), key
        if key.startswith(("resume", "mode", "pause", "choices", "sweep", "search")):
            continue
        now = leaves(other)
        differences = changes(LEAVES, now)
        names = [change.key for change in differences]
        assert names
        assert all(name == key or name.startswith(f"{key}.") for name in names)
        assert Change(key, LEAVES[key], now.get(key)) in differences or LEAVES[key] == {}


def test_changes_leave_out_keys_of_one_command():
    one_command = {"resume": "runs/old", "mode": "export", "choices.model": "x", "sweep.jobs": 2}
    assert changes(LEAVES, {**LEAVES, **one_command}) == []
    assert changes_of("model=softmax", "seed=4", before=["model=softmax"]) == [Change("seed", 0, 4)]
    one_side = {change.key: change.now for change in changes_of("model=softmax")}
    assert one_side["model._target_"] == "trainer.models.softmax.softmax"
    assert one_side["model.width"] is None
    assert "callbacks" not in {change.key for change in changes_of("callbacks=early_stopping")}


MODEL, SGD = LEAVES["model._target_"], "trainer.optimizers.sgd.sgd"


@pytest.mark.parametrize(
    ("key", "target", "effect"),
    [
        ("checkpoint.best.keep", None, Free()),
        ("train.epochs", None, Free(names_run=True)),
        ("strategy.workers", "trainer.strategies.multi_worker.MultiWorker", Free(names_run=True)),
        ("seed", None, Semantic()),
        ("schedule._target_", None, Semantic()),
        ("callbacks.mine.patience", None, Semantic()),
        ("callbacks.mine._target_", None, Structural()),
        ("optimizer._target_", SGD, Structural()),
        ("dataset.path", "trainer.datasets.mnist.mnist", Free(names_run=True)),
        ("dataset.fields.image.kind", "trainer.datasets.npy.npy", Structural()),
        ("model.dropout", MODEL, Semantic()),
        ("model.width", MODEL, Structural()),
        # An older record may have a key that has gone since.
        ("checkpoint.gone", None, Free()),
    ],
)
def test_effect_is_that_of_the_option_or_its_section(key, target, effect):
    assert effect_of(key, target) == effect
    with pytest.raises(LookupError, match=r"train\.twice has no effect; add Free\(\)"):
        effect_of("train.twice")


def test_option_of_a_users_target_has_the_effect_of_its_annotation(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_data.py").write_text(
        "def data(*, path: Annotated[str, Exists(), Free(names_run=True)], workers: "
        "Annotated[int, Ge(1), Free()] = 1, fields: Annotated[list, Structural()], rate=1): ...\n"
    )
    before = {"dataset._target_": "own_data.data", "dataset.path": "a", "dataset.workers": 1}
    now = {**before, "dataset.path": "b", "dataset.workers": 2, "dataset.rate": 2}
    assert {change.key: change.effect for change in changes(before, now)} == {
        "dataset.path": Free(names_run=True),
        "dataset.workers": Free(),
        "dataset.rate": Semantic(),
    }
    assert effect_of("dataset.fields.a", "own_data.data") == Structural()


@pytest.mark.parametrize(
    ("key", "before", "now", "target", "is_structural"),
    [
        ("train.ema_decay", None, 0.99, None, True),
        ("precision", "mixed_float16", "float32", None, True),
        ("optimizer.momentum", 0.9, 0.5, SGD, False),
        ("optimizer.momentum", 0.9, 0.0, SGD, True),
    ],
)
def test_change_is_structural_if_it_creates_variables(key, before, now, target, is_structural):
    effect = Change(key, before, now, target=target).effect
    assert isinstance(effect, Structural if is_structural else Semantic)


def test_semantic_change_must_be_allowed_and_a_structural_one_cannot_be():
    _, change, fix = problems_of("optimizer.learning_rate=0.01")
    assert change == "  optimizer.learning_rate: 0.001 -> 0.01"
    assert "resume_allow=[optimizer.learning_rate]" in fix
    keys = ["optimizer.learning_rate", "optimizer", "optimizer.learning_rat"]
    problems = [problems_of("optimizer.learning_rate=0.01", allow=[key]) for key in keys]
    assert [lines == [] for lines in problems] == [True, True, False]
    _, change, fix = problems_of("model.width=8", "model.dropout=0.5", allow=["model"])
    assert change == "  model.width: 32 -> 8 (makes variables)"
    assert "init_from=runs/old" in fix
    assert "resume_allow" not in fix


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
        for name, text in (("net", NET), ("data", DATA), ("task", TASK)):
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


def test_null_option_that_a_target_had_names_the_same_run():
    experiment = compose(["strategy=multi_worker"])
    name = run_name(experiment)
    experiment.strategy = {**experiment.strategy, "hosts": None}
    assert run_name(experiment) == name
