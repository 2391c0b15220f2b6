"""Epochs and intervals of a plan, compared with brute force."""

import itertools

import pytest

from trainer.cli.compose import compose
from trainer.config.schema import Checkpoint, Train
from trainer.engine.plan import Epochs, LastStep, is_due, make_plan, save_policies, step_policies
from trainer.errors import ConfigError

SHAPES = [(10, 5), (10, 3), (10, 10), (7, 16), (2, 5), (1, 8), (1437, 128)]


@pytest.mark.parametrize(("num_examples", "global_size"), SHAPES)
def test_epoch_ends_at_first_step_that_completes_its_pass(num_examples, global_size):
    epochs = Epochs(num_examples, global_size)
    for epoch in range(40):
        end = epochs.end(epoch)
        assert end * global_size >= (epoch + 1) * num_examples
        assert (end - 1) * global_size < (epoch + 1) * num_examples


@pytest.mark.parametrize(
    ("epochs", "train", "steps"),
    [
        (Epochs(10, 3), Train(steps=17, epochs=None), 17),
        (Epochs(10, 3), Train(epochs=1), 4),
        (Epochs(10, 3), Train(epochs=3), 10),
        (Epochs(2, 5), Train(epochs=5), 2),
        (Epochs(60_000, 64, 70), Train(epochs=12), 840),
    ],
)
def test_total_steps_from_steps_or_epochs(epochs, train, steps):
    assert epochs.total_steps(train) == steps


@pytest.mark.parametrize("shape", [*SHAPES, (60_000, 64, 7)])
def test_next_after_returns_first_due_step(shape):
    epochs = Epochs(*shape)
    for every_steps, every_epochs, total in itertools.product(
        (None, 1, 4, 7), (None, 1, 2, 3, 5), (1, 5, 30)
    ):
        policies = [*step_policies(epochs, every_steps, every_epochs), LastStep(total)]
        due = [step for step in range(total + 3) if is_due(policies, step)]
        assert 0 not in due
        assert due[-3:] == [total, total + 1, total + 2]
        for step in range(total):
            first = min(policy.next_after(step) for policy in policies)
            assert first == min(t for t in due if t > step), (every_steps, every_epochs, total)


@pytest.mark.parametrize(("examples", "size"), [(10, 5), (10, 3), (7, 16), (1, 8), (100, 64)])
def test_save_is_due_at_the_first_step_by_which_a_multiple_of_examples_is_seen(examples, size):
    (policy,) = save_policies(
        Checkpoint(every_epochs=None, every_examples=examples), Epochs(1, size)
    )
    passed = [
        step for step in range(1, 60) if step * size // examples > (step - 1) * size // examples
    ]
    assert [step for step in range(60) if is_due([policy], step)] == passed
    assert passed[0] * size >= examples > (passed[0] - 1) * size


@pytest.mark.parametrize(
    ("every_steps", "total", "interval"),
    [("auto", 12, 1), ("auto", 437, 4), ("auto", 4_999, 49), ("auto", 90_000, 50), (7, 437, 7)],
)
def test_training_metrics_are_reported_a_hundred_times_or_more(every_steps, total, interval):
    experiment = compose([f"train.steps={total}", f"summary.every_steps={every_steps}"])
    assert make_plan(experiment, 10_000_000, 10).summarize[0].next_after(0) == interval


def test_asynchronous_workers_are_not_stopped_for_a_report_at_every_few_steps():
    experiment = compose(["train.steps=200"])
    plan = make_plan(experiment, 10_000_000, 10, asynchronous=True)
    assert plan.summarize[0].next_after(0) == 50


class Late:
    """A save policy that names a later step only at first."""

    def __init__(self, epochs, *, answer):
        self.answer = answer

    def next_after(self, step):
        return self.answer


@pytest.mark.parametrize("answer", [0, -1, 1.5, None])
def test_save_policy_that_names_no_later_step_is_refused_at_the_start(answer):
    own = {"_target_": f"{__name__}.Late", "answer": answer}
    with pytest.raises(ConfigError, match=rf"next_after\(0\) must .* > 0, and returned {answer}"):
        save_policies(Checkpoint(save_policy=own), Epochs(10, 5))


def test_save_policy_that_stays_behind_is_refused_later():
    own = {"_target_": f"{__name__}.Late", "answer": 3}
    *_, policy = save_policies(Checkpoint(save_policy=own), Epochs(10, 5))
    assert policy.next_after(2) == 3
    with pytest.raises(ConfigError, match="integer > 3, and returned 3"):
        policy.next_after(3)


@pytest.mark.parametrize(
    ("overrides", "step"),
    [
        (["pause.at_step=5"], 8),
        (["pause.at_step=8"], 8),
        (["pause.at_step=9"], 12),
        (["pause.at_epoch=0.4"], 4),
        (["pause.at_epoch=0.5"], 8),
        (["pause.at_step=17"], 18),
        ([], None),
    ],
)
def test_pause_is_at_the_first_evaluation_from_its_budget_on(overrides, step):
    options = ["train.steps=18", "train.epochs=null", "evaluate.every_steps=4"]
    experiment = compose([*options, "evaluate.every_epochs=null", *overrides])
    pause = make_plan(experiment, num_examples=100, global_size=10).pause_step
    assert pause == step or (step is None and pause > 18)


@pytest.mark.parametrize(
    "overrides",
    [["pause.at_step=1", "pause.at_epoch=1"], ["pause.at_step=1", "evaluate.sidecar=true"]],
)
def test_pause_that_cannot_be_kept_is_refused(overrides):
    with pytest.raises(ConfigError, match=r"pause"):
        compose(overrides)
