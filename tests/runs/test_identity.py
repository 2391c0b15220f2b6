"""Identity: which configurations name the same run, and which changes a run may continue with."""

import copy
import re
from pathlib import Path

import pytest

from tests.support.choices import NEEDED
from trainer.cli.compose import compose
from trainer.config import loading
from trainer.runs.identity import (
    KINDS,
    NAMING,
    Change,
    Kind,
    change_problems,
    changes,
    entry,
    names_run,
    run_name,
)
from trainer.runs.normalization import flatten, leaves

DEFAULT = compose([])
LEAVES = leaves(DEFAULT)
LOOP = ["loop._target_=tests.support.loops.everything", "+loop.rate=0.1", "train.steps=8"]
CONF = Path(__file__).resolve().parents[2] / "conf"


def needed(overrides):
    """Return what the chosen choices need besides."""
    return [more for override in overrides for more in NEEDED.get(override, [])]


@pytest.fixture(scope="module")
def every_key():
    """The keys of every choice of every group."""
    groups = {}
    for file in sorted(CONF.glob("*/*.yaml")):
        groups.setdefault(file.parent.name, []).append(f"{file.parent.name}={file.stem}")
    # With the default dataset, which takes augmentations: a task may need them.
    alone = [
        [choice] for group in ("experiment", "augment", "task") for choice in groups.pop(group)
    ]
    environments = groups.pop("env")
    buffers = groups.pop("buffer")
    assert len(groups) >= 9
    # The n-th choice of every group together.
    together = [
        [choices[min(n, len(choices) - 1)] for choices in groups.values()]
        for n in range(max(map(len, groups.values())))
    ]
    acting = [
        ["train.steps_per_epoch=1", environments[0], *other]
        for other in (*([name] for name in environments), *([name] for name in buffers))
    ]
    return {
        key
        for overrides in [*together, *alone, LOOP, *acting]
        for key in leaves(compose([*overrides, *needed(overrides)]))
    }


def changes_of(*overrides, before=()):
    return changes(
        leaves(compose(list(before))) if before else LEAVES, leaves(compose(list(overrides)))
    )


def problems_of(*overrides, allow=(), resume="runs/old"):
    experiment = compose(list(overrides))
    experiment.resume = resume
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
        node[last] = "4" if key in ("name", "init_from", "checkpoint.best.metric") else 4
    else:
        node[last] = f"{value}x"
    return loading.restore(container)


def test_run_name_is_model_dataset_and_eight_hex_digits():
    assert re.fullmatch(r"cnn-digits-[0-9a-f]{8}", run_name(DEFAULT))
    assert re.fullmatch(
        r"softmax-synthetic-[0-9a-f]{8}", run_name(compose(["model=softmax", "dataset=synthetic"]))
    )


def test_run_name_starts_with_a_chosen_name():
    assert run_name(compose(["name=mine"])) == run_name(DEFAULT).replace("cnn-digits", "mine")


def test_run_name_is_the_same_for_the_same_command():
    overrides = ["model=mobilenet", "optimizer.learning_rate=0.01", "seed=3"]
    assert (
        run_name(compose(overrides))
        == run_name(compose(overrides))
        == run_name(compose(overrides[::-1]))
    )


def test_run_name_ignores_explicit_defaults():
    assert run_name(compose(["seed=0", "model=cnn", "batch.global_size=128"])) == run_name(DEFAULT)


def test_run_name_is_the_same_for_equal_numbers():
    assert run_name(compose(["optimizer.learning_rate=1", "model.dropout=0"])) == run_name(
        compose(["optimizer.learning_rate=1.0", "model.dropout=0.0"])
    )
    steps = [
        run_name(compose(["schedule=step", f"schedule.boundaries={boundaries}"]))
        for boundaries in ("[10,20]", "[10,30]")
    ]
    assert steps[0] != steps[1]


def test_run_name_is_the_same_for_a_restored_configuration():
    assert run_name(loading.restore(loading.plain(DEFAULT))) == run_name(DEFAULT)


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_run_name_depends_on_every_naming_key(key):
    digest, other = run_name(DEFAULT)[-8:], run_name(changed(key))[-8:]
    assert (digest != other) == names_run(key)


def test_entry_exists_for_every_key(every_key):
    for key in sorted(every_key):
        assert entry(key)


def test_entry_rejects_a_key_without_a_kind():
    with pytest.raises(LookupError, match=r"train\.twice has no kind; add it to KINDS"):
        entry("train.twice")


def test_kinds_have_no_unused_entry(every_key):
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
def test_change_has_the_kind_of_its_key(key, kind):
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
def test_change_is_structural_if_it_creates_variables(key, before, now, kind):
    assert Change(key, before, now).kind is kind


def test_free_keys_that_name_the_run():
    free = [key for key in LEAVES if names_run(key) and Change(key, 1, 2).kind is Kind.FREE]
    assert free == [
        "train.steps",
        "train.epochs",
        "devices.gpus",
        "devices.threads",
        "strategy._target_",
        "strategy.device",
    ]


@pytest.mark.parametrize(
    "key",
    sorted(
        key
        for key in LEAVES
        if not key.startswith(("resume", "mode", "choices", "sweep", "search"))
    ),
)
def test_changes_have_the_key_and_both_values(key):
    now = changed(key)
    value = leaves(now).get(key)
    differences = changes(LEAVES, leaves(now))
    assert differences
    names = [change.key for change in differences]
    assert all(name == key or name.startswith(f"{key}.") for name in names)
    assert Change(key, LEAVES[key], value) in differences or LEAVES[key] == {}


def test_changes_leave_out_keys_of_one_command():
    assert changes_of("mode=train", "model=cnn") == []
    other = {
        "resume": "runs/old",
        "resume_allow": ["seed"],
        "mode": "export",
        "choices.model": "another",
        "sweep.jobs": 2,
    }
    now = leaves(compose([])) | other
    assert changes(LEAVES, now) == []


def test_changes_list_every_key():
    assert changes_of("model=softmax", "model.l2=0.1", "seed=4", before=["model=softmax"]) == [
        Change("seed", 0, 4),
        Change("model.l2", 0.0, 0.1),
    ]


def test_changes_include_keys_of_one_side():
    found = changes_of("model=softmax")
    differences = {change.key: (change.before, change.now) for change in found}
    assert differences["model._target_"] == (
        "trainer.models.cnn.cnn",
        "trainer.models.softmax.softmax",
    )
    assert differences["model.width"] == (LEAVES["model.width"], None)
    assert "callbacks" not in {change.key for change in changes_of("callbacks=early_stopping")}


def test_change_problems_allow_more_steps_and_other_hardware():
    assert (
        problems_of(
            "train.steps=99", "strategy=mirrored", "strategy.virtual_devices=2", "checkpoint.keep=9"
        )
        == []
    )


def test_change_problems_reject_a_semantic_change_unless_allowed():
    assert problems_of("optimizer.learning_rate=0.01") == [
        "runs/old was trained with other values:",
        "  optimizer.learning_rate: 0.001 -> 0.01",
        "leave it as it was, allow it with resume_allow=[optimizer.learning_rate], "
        "or start a new run (init_from=runs/old takes its weights)",
    ]
    assert problems_of("optimizer.learning_rate=0.01", allow=["optimizer.learning_rate"]) == []
    assert problems_of("optimizer.learning_rate=0.01", allow=["optimizer"]) == []
    assert problems_of("optimizer.learning_rate=0.01", allow=["optimizer.learning_rat"]) != []


def test_change_problems_list_all_changes_to_allow():
    lines = problems_of("schedule=cosine", "seed=2", "batch.global_size=64", allow=["seed"])
    assert lines[1:-1] == [
        "  batch.global_size: 128 -> 64",
        "  schedule._target_: 'trainer.schedules.constant.constant' -> "
        "'trainer.schedules.cosine.cosine'",
        "  schedule.final_fraction: null -> 0.0",
    ]
    assert lines[-1].startswith(
        "leave them as they were, allow them with resume_allow=[schedule,seed,batch.global_size], "
        "or start a new run"
    )
    assert (
        problems_of(
            "schedule=cosine",
            "seed=2",
            "batch.global_size=64",
            allow=["schedule", "seed", "batch.global_size"],
        )
        == []
    )


def test_change_problems_reject_a_structural_change_always():
    assert problems_of("model.width=8", "model.dropout=0.5", allow=["model"]) == [
        "runs/old was trained with other values:",
        "  model.width: 32 -> 8 (makes variables)",
        "leave it as it was, or start a new run "
        "(init_from=runs/old takes its weights, if the model is the same)",
    ]


def test_change_problems_name_the_run_that_was_found():
    (*_, line) = problems_of("seed=2", resume="auto")
    assert line == (
        "go on as it was with resume=runs/old alone, "
        "allow it with resume=runs/old resume_allow=[seed], "
        "or start a new run (init_from=runs/old takes its weights)"
    )


def test_flatten_keeps_an_empty_mapping_as_a_leaf():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}
