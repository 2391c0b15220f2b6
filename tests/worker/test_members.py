"""A user's object that lacks a member of `trainer.protocols` is one line."""

from types import SimpleNamespace

import pytest

from tests.support.command_line import run_here
from trainer.errors import ConfigError
from trainer.protocols import Metric, names_of
from trainer.worker import checks

ADVICE = "; add what trainer/protocols/ describes"
SPLIT = SimpleNamespace(num_examples=1, in_memory=True, fetch=lambda indices: {})
DATASET = {
    "train": SPLIT,
    "test": SPLIT,
    "input_shape": (8, 8, 1),
    "num_classes": 10,
    "num_draws": 0,
    "transform": lambda batch, draws: batch,
}
TOYS = """
from trainer.tasks.classification import Classification


class Unbuilt(Classification):
    metrics = ("loss",)

    def __init__(self, **options):
        pass

    def build(self, parts):
        pass
"""


def without(values, name):
    return SimpleNamespace(**{key: value for key, value in values.items() if key != name})


def test_dataset_and_splits_without_a_member_are_refused():
    checks.check_dataset(SimpleNamespace(**DATASET))
    for name in DATASET:
        with pytest.raises(ConfigError) as raised:
            checks.check_dataset(without(DATASET, name))
        assert raised.value.problems == (f"dataset (SimpleNamespace) has no {name}{ADVICE}",)
    for split in ("train", "test"):
        dataset = SimpleNamespace(**{**DATASET, split: SimpleNamespace(num_examples=3)})
        with pytest.raises(ConfigError) as raised:
            checks.check_dataset(dataset)
        assert raised.value.problems == (
            f"dataset.{split} (SimpleNamespace) has no in_memory, fetch{ADVICE}",
        )


def test_methods_of_a_task_are_checked_before_attributes_that_build_leaves():
    task = SimpleNamespace(build=None, train_step=None)
    for lacks in ("eval_step", "metrics, models, optimizers after build()"):
        with pytest.raises(ConfigError) as raised:
            checks.check_built_task(task, SimpleNamespace())
        assert raised.value.problems == (f"task (SimpleNamespace) has no {lacks}{ADVICE}",)
        task.make_evaluator = print  # instead of eval_step


class Keras:
    """Has what tells a callback of Keras."""

    def set_model(self, model):
        pass


EVERY = r"must be an integer >= 1, .* one on_step to the next; add .* every = 100"
CALLBACKS = {
    " has none of on_train_begin, .*on_train_end, adjust_learning_rate; add one": {},
    " has on_epoch_begin, which is never called; did you mean 'on_epoch_end'": {
        "on_epoch_begin": print, "adjust_learning_rate": print,
    },
    rf": every \(None\) {EVERY}": {"on_step": lambda training: None},
    rf": every \(0\) {EVERY}": {"on_step": lambda training: None, "every": 0},
    r": on_epoch_end\(epoch, logs=None\) is called with \(training\);": {
        "on_epoch_end": lambda epoch, logs=None: None
    },
    r": on_evaluate\(metrics\) is called with \(step, metrics\); let it take these alone": {
        "on_evaluate": lambda metrics: None
    },
}  # fmt: skip


@pytest.mark.parametrize("problem", CALLBACKS)
def test_callback_that_would_not_be_called_is_refused(problem):
    with pytest.raises(ConfigError, match=rf"^callbacks.mine \(SimpleNamespace\){problem}"):
        checks.check_callback("callbacks.mine", SimpleNamespace(**CALLBACKS[problem]))


def test_callback_of_keras_is_told_its_place():
    with pytest.raises(ConfigError) as raised:
        checks.check_callback("callbacks.mine", Keras())
    assert raised.value.problems == (
        "callbacks.mine (Keras) is a callback of Keras; write callbacks=keras "
        f"callbacks.keras.callback._target_={__name__}.Keras, and its options there",
    )
    checks.check_callback("callbacks.mine", SimpleNamespace(on_evaluate=lambda *args: None))


def test_metric_without_members_is_refused():
    with pytest.raises(ConfigError) as raised:
        checks.check_has("metrics.mine", SimpleNamespace(result=None), names_of(Metric))
    problem = f"metrics.mine (SimpleNamespace) has no update_state, reset_state{ADVICE}"
    assert raised.value.problems == (problem,)


def test_incomplete_task_ends_the_command_with_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "toys.py").write_text(TOYS)
    outcome = run_here(
        "launch=inline", "model=softmax", "train.steps=1", "task._target_=toys.Unbuilt"
    )
    assert outcome.code == 2, outcome.out + outcome.err
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: task (Unbuilt) has no models, optimizers after build()")
    assert not (tmp_path / "runs").exists()
