"""The same command finds the same run; whatever changes a number of the training finds another, or must be allowed."""

import copy
import re
from pathlib import Path

import pytest

from trainer import config
from trainer.cli import compose
from trainer.identity import KINDS, NAMING, Change, Kind, changes, content, entry, flatten, names_run, refusal, run_name

DEFAULT = compose([])
LEAVES = content(DEFAULT)
CONF = Path(__file__).resolve().parent.parent / "conf"


@pytest.fixture(scope="module")
def every_key():
    """The keys of every choice of every group."""
    groups = {}
    for file in sorted(CONF.glob("*/*.yaml")):
        groups.setdefault(file.parent.name, []).append(f"{file.parent.name}={file.stem}")
    recipes = groups.pop("experiment")
    assert len(groups) >= 9
    # The n-th choice of each group at once.
    together = [[choices[min(n, len(choices) - 1)] for choices in groups.values()] for n in range(max(map(len, groups.values())))]
    return {key for overrides in [*together, *([recipe] for recipe in recipes)] for key in content(compose(overrides))}


def found(*overrides, before=()):
    return changes(content(compose(list(before))) if before else LEAVES, content(compose(list(overrides))))


def told(*overrides, allow=(), resume="runs/it"):
    now = compose(list(overrides))
    now.resume, now.resume_allow = resume, list(allow)
    return refusal(Path("runs/it"), changes(LEAVES, content(now)), now)


def changed(key):
    """Gives the default experiment with another value at one key."""
    container = copy.deepcopy(config.plain(DEFAULT))
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
    elif value is None and isinstance(getattr(getattr(DEFAULT, key.split(".")[0]), last, None), type(None)):
        node[last] = "4" if key in ("name", "init_from", "checkpoint.best.metric") else 4
    else:
        node[last] = f"{value}x"
    return config.restore(container)


def test_the_name_is_model_dataset_and_eight_hex_digits():
    assert re.fullmatch(r"cnn-digits-[0-9a-f]{8}", run_name(DEFAULT))
    assert re.fullmatch(r"softmax-synthetic-[0-9a-f]{8}", run_name(compose(["model=softmax", "dataset=synthetic"])))


def test_a_given_name_replaces_model_and_dataset_and_nothing_else():
    assert run_name(compose(["name=mine"])) == run_name(DEFAULT).replace("cnn-digits", "mine")


def test_the_same_command_gives_the_same_name():
    overrides = ["model=mobilenet", "optimizer.learning_rate=0.01", "seed=3"]
    assert run_name(compose(overrides)) == run_name(compose(overrides)) == run_name(compose(overrides[::-1]))


def test_a_default_that_is_spelled_out_is_the_same_experiment():
    assert run_name(compose(["seed=0", "model=cnn", "batch.global_size=128"])) == run_name(DEFAULT)


def test_equal_numbers_name_one_run():
    assert run_name(compose(["optimizer.learning_rate=1", "model.dropout=0"])) == run_name(
        compose(["optimizer.learning_rate=1.0", "model.dropout=0.0"])
    )
    steps = [run_name(compose(["schedule=step", f"schedule.boundaries={boundaries}"])) for boundaries in ("[10,20]", "[10,30]")]
    assert steps[0] != steps[1]


def test_a_restored_configuration_has_the_same_name():
    assert run_name(config.restore(config.plain(DEFAULT))) == run_name(DEFAULT)


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_every_key_but_the_free_ones_makes_another_run(key):
    digest, other = run_name(DEFAULT)[-8:], run_name(changed(key))[-8:]
    assert (digest != other) == names_run(key)


def test_every_key_has_a_class(every_key):
    for key in sorted(every_key):
        assert entry(key)


def test_a_key_without_a_class_is_an_error_that_names_it():
    with pytest.raises(LookupError, match=r"train\.twice has no class; add it to KINDS"):
        entry("train.twice")


def test_every_entry_of_the_table_holds_for_a_key(every_key):
    entries = {name for names in KINDS.values() for name in names}
    assert sum(len(names) for names in KINDS.values()) == len(entries)
    assert {entry(key) for key in every_key} == entries
    assert set(KINDS[Kind.FREE]) >= NAMING


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("checkpoint.best.keep", Kind.FREE),
        ("strategy.workers", Kind.FREE),
        ("seed", Kind.SEMANTIC),
        ("batch.accumulate", Kind.SEMANTIC),
        ("schedule._target_", Kind.SEMANTIC),
        ("callbacks.mine.patience", Kind.SEMANTIC),
        ("model.dropout", Kind.SEMANTIC),
        ("model.width", Kind.STRUCTURAL),
        ("model.own_option.deeper", Kind.STRUCTURAL),
        ("optimizer._target_", Kind.STRUCTURAL),
        ("callbacks.mine._target_", Kind.STRUCTURAL),
    ],
)
def test_kinds(key, kind):
    assert Change(key, 1, 2).kind is kind


@pytest.mark.parametrize(
    ("key", "before", "now", "kind"),
    [
        ("train.ema_decay", 0.9, 0.99, Kind.SEMANTIC),
        ("train.ema_decay", None, 0.99, Kind.STRUCTURAL),
        ("precision", "float32", "mixed_bfloat16", Kind.SEMANTIC),
        ("precision", "mixed_float16", "float32", Kind.STRUCTURAL),
        ("optimizer.momentum", 0.9, 0.5, Kind.SEMANTIC),
        ("optimizer.momentum", 0.9, 0.0, Kind.STRUCTURAL),
    ],
)
def test_a_value_that_makes_variables_makes_its_change_structural(key, before, now, kind):
    assert Change(key, before, now).kind is kind


def test_what_names_the_run_and_is_free_all_the_same():
    free = [key for key in LEAVES if names_run(key) and Change(key, 1, 2).kind is Kind.FREE]
    assert free == ["train.steps", "train.epochs", "strategy._target_", "strategy.device"]


@pytest.mark.parametrize("key", sorted(key for key in LEAVES if not key.startswith(("resume", "mode", "choices", "sweep", "search"))))
def test_changes_names_the_key_and_both_values(key):
    now = changed(key)
    value = content(now).get(key)
    differences = changes(LEAVES, content(now))
    assert differences
    assert all(name == key or name.startswith(f"{key}.") for name, _, _ in differences)
    assert (key, LEAVES[key], value) in differences or LEAVES[key] == {}


def test_what_concerns_one_command_is_no_change():
    assert found("mode=train", "model=cnn") == []
    other = {"resume": "runs/it", "resume_allow": ["seed"], "mode": "export", "choices.model": "another", "sweep.jobs": 2}
    now = content(compose([])) | other
    assert changes(LEAVES, now) == []


def test_changes_of_a_model_are_listed_key_by_key():
    assert found("model=softmax", "model.l2=0.1", "seed=4", before=["model=softmax"]) == [("seed", 0, 4), ("model.l2", 0.0, 0.1)]


def test_a_key_that_only_one_of_the_two_has_is_a_change():
    differences = {key: (before, now) for key, before, now in found("model=softmax")}
    assert differences["model._target_"] == ("trainer.models.cnn.cnn", "trainer.models.softmax.softmax")
    assert differences["model.width"] == (LEAVES["model.width"], None)
    assert "callbacks" not in {change.key for change in found("callbacks=early_stopping")}


def test_longer_and_on_other_hardware_is_never_refused():
    assert told("train.steps=99", "strategy=mirrored", "strategy.virtual_devices=2", "checkpoint.keep=9") == []


def test_a_semantic_change_is_refused_with_the_ways_out():
    assert told("optimizer.learning_rate=0.01") == [
        "runs/it was trained with other values:",
        "  optimizer.learning_rate: 0.001 -> 0.01",
        "leave it as it was, allow it with resume_allow=[optimizer.learning_rate], "
        "or start a new run (init_from=runs/it takes its weights)",
    ]
    assert told("optimizer.learning_rate=0.01", allow=["optimizer.learning_rate"]) == []
    assert told("optimizer.learning_rate=0.01", allow=["optimizer"]) == []
    assert told("optimizer.learning_rate=0.01", allow=["optimizer.learning_rat"]) != []


def test_all_that_is_refused_is_listed_and_all_that_must_be_allowed():
    lines = told("schedule=cosine", "seed=2", "batch.global_size=64", allow=["seed"])
    assert lines[1:-1] == [
        "  batch.global_size: 128 -> 64",
        "  schedule._target_: 'trainer.schedules.constant' -> 'trainer.schedules.cosine'",
        "  schedule.final_fraction: null -> 0.0",
    ]
    assert lines[-1].startswith(
        "leave them as they were, allow them with resume_allow=[schedule,seed,batch.global_size], or start a new run"
    )
    assert told("schedule=cosine", "seed=2", "batch.global_size=64", allow=["schedule", "seed", "batch.global_size"]) == []


def test_a_structural_change_cannot_be_allowed():
    assert told("model.width=8", "model.dropout=0.5", allow=["model"]) == [
        "runs/it was trained with other values:",
        "  model.width: 32 -> 8 (makes variables)",
        "leave it as it was, or start a new run (init_from=runs/it takes its weights, if the model is the same)",
    ]


def test_a_command_that_found_the_run_by_itself_is_told_how_to_go_on():
    (*_, way) = told("seed=2", resume="auto")
    assert way == (
        "go on as it was with resume=runs/it alone, allow it with resume=runs/it resume_allow=[seed], "
        "or start a new run (init_from=runs/it takes its weights)"
    )


def test_flatten_keeps_an_empty_mapping_as_a_leaf():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}
