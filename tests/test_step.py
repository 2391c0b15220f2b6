"""One step: precision, loss scale, XLA, averages."""

import json

import numpy as np
import pytest

from tests.training import engine, train, variables, weights

PLAIN = ["optimizer=sgd", "optimizer.learning_rate=0.05"]
MIRRORED = ["strategy=mirrored", "strategy.virtual_devices=2"]


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        pytest.param(["jit=true"], 1e-6, marks=pytest.mark.slow),
        pytest.param(["jit=true", *MIRRORED], 1e-6, marks=pytest.mark.slow),
        (["precision=mixed_bfloat16"], 2e-2),
        (["precision=mixed_float16"], 2e-2),
    ],
    ids=["jit", "jit on two replicas", "bfloat16", "float16"],
)
def test_the_same_update_in_another_form(tmp_path, options, tolerance):
    plain, other = train(tmp_path / "plain", *PLAIN), train(tmp_path / "other", *PLAIN, *options)
    assert np.abs(weights(plain) - weights(other)).max() <= tolerance


@pytest.mark.parametrize("strategy", [[], MIRRORED], ids=["one_device", "mirrored"])
def test_an_overflow_drops_the_update_and_halves_the_loss_scale(tmp_path, strategy):
    made = engine(tmp_path, *PLAIN, *strategy, "precision=mixed_float16", "train.steps=1")
    made.state.loss_scale.value.assign(3e38)
    before = variables(made)
    made.train(lambda: False)
    after = variables(made)
    np.testing.assert_array_equal(weights(before), weights(after))
    assert int(made.state.task.optimizers["model"].iterations.numpy()) == 0
    assert after["/loss_scale/value"] == pytest.approx(1.5e38)
    assert made.step == 1


def test_the_loss_scale_doubles_after_enough_good_steps(tmp_path):
    made = engine(tmp_path, *PLAIN, "precision=mixed_float16", "train.steps=2")
    made.state.loss_scale.good_steps.assign(made.state.loss_scale.GROWTH_STEPS - 1)
    made.train(lambda: False)
    after = variables(made)
    assert after["/loss_scale/value"] == 2 * made.state.loss_scale.INITIAL
    assert after["/loss_scale/good_steps"] == 1


@pytest.mark.parametrize("strategy", [[], MIRRORED], ids=["one_device", "mirrored"])
def test_averages_follow_their_recurrence_and_are_what_is_evaluated(tmp_path, strategy):
    made = engine(tmp_path, *PLAIN, *strategy, "train.ema_decay=0.5", "train.steps=3", "train.steps_per_loop=1")
    kernel = made.state.task.models["model"].trainable_variables[0]
    history = [kernel.numpy()]

    def stop():
        if len(history) <= made.step < 3:  # not within the evaluation at the end, when weights and averages are exchanged
            history.append(kernel.numpy())
        return False

    made.train(stop)
    history.append(kernel.numpy())
    average = history[0]
    for step, weight in enumerate(history[1:4]):
        decay = min(0.5, (1 + step) / (10 + step))
        average = average + (1 - decay) * (weight - average)
    averaged = made.state.averages["model"][0].numpy()
    np.testing.assert_allclose(averaged, average, atol=1e-7)
    evaluated = made.evaluator.evaluate(lambda: False)
    np.testing.assert_array_equal(kernel.numpy(), history[3])
    made.state.swap_averages()
    np.testing.assert_array_equal(kernel.numpy(), averaged)
    made.state.averages.clear()
    assert made.evaluator.evaluate(lambda: False) == evaluated


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path):
    from trainer.errors import NonFiniteError

    made = engine(tmp_path, "optimizer=sgd", "optimizer.learning_rate=1e30", "train.steps_per_loop=4", "checkpoint.every_steps=2")
    with pytest.raises(
        NonFiniteError, match=r"(the loss|the norm of the gradient) became (nan|inf) after \d+ steps; try a smaller optimizer.learning_rate"
    ):
        made.train(lambda: False)
    assert all(np.isfinite(value).all() for value in variables(engine(tmp_path)).values())


def test_early_stopping_ends_the_run_and_its_memory_survives_a_stop(tmp_path):
    options = [
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=2",
        "callbacks.early_stopping.min_delta=2",
        "evaluate.every_steps=1",
    ]
    first = engine(tmp_path, *options, "train.steps_per_loop=1")
    first.train(lambda: first.step >= 2)
    second = engine(tmp_path, *options)
    assert second.train(lambda: False)
    # The first evaluation is the best so far; two more without improvement are allowed, counted over both attempts.
    assert second.step == 3
    assert second.result()["step"] == 3


def test_the_learning_rate_scales_with_the_batch_from_a_reference(tmp_path):
    train(tmp_path, *PLAIN, "schedule.reference_batch=8", "schedule.warmup_steps=4", "train.steps=3", "summary.every_steps=1")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # Batch 16 is twice the reference: the peak is twice 0.05, reached after four steps.
    assert [line["learning_rate"] for line in lines if line["split"] == "train"] == pytest.approx([0.025, 0.05, 0.075])
