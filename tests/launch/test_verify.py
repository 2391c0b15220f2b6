"""mode=verify: a resumable experiment passes; lost state and randomness are found."""

import dataclasses

import pytest

from tests.support.processes import OPTIONS, run, succeed
from trainer.launch.verify import Outcome, differences, likely_cause, random_kills

SHORT = [*OPTIONS, "mode=verify", "verify.steps=24", "verify.kills=1"]
SMALL = ["model=softmax", *(item for item in SHORT if not item.startswith(("model", "augment")))]
OUTCOME = Outcome(
    {"step": 24, "metrics": {"loss": 0.5}, "best": None},
    [{"step": 4, "split": "train", "loss": 2.0}, {"step": 8, "split": "train", "loss": 1.0}],
    {"models/model/w": {"crc32": 1}, "callbacks/mine/best": {"crc32": 2}},
    [(3, "kill_1 (chief at step 3)"), (7, "kill_2 (worker-1 in save 1)")],
)


def test_random_kills_repeat_with_their_seed_and_lie_within_the_run():
    assert random_kills(["worker-0"], 200, 5, seed=3) == random_kills(["worker-0"], 200, 5, seed=3)
    faults = [
        fault
        for seed in range(200)
        for fault in random_kills(["worker-0", "worker-1"], 200, 3, seed).values()
    ]
    assert {fault.process for fault in faults} == {"supervisor", "worker-0", "worker-1"}
    assert {fault.phase for fault in faults} == {"step", "evaluate", "save"}
    assert all(0 < fault.at < 200 for fault in faults)
    assert all(fault.phase == "step" and fault.at <= 67 for fault in faults[::3])


def test_differences_name_the_first_of_a_kind_and_the_kill_before_it():
    other = dataclasses.replace(
        OUTCOME,
        lines=[OUTCOME.lines[0], {"step": 8, "split": "train", "loss": 1.5}],
        variables={**OUTCOME.variables, "models/model/w": {"crc32": 9}},
    )
    assert differences(OUTCOME, other) == [
        "metrics: the first line that differs is that of step 8, after kill_2 (worker-1 in save 1)",
        "variables: 1 of 2 differ after the last step, the first is models/model/w",
    ]
    assert likely_cause(OUTCOME, other, unrepeatable=False).startswith(
        "something that the next step depends on is in no checkpoint"
    )
    assert likely_cause(OUTCOME, other, unrepeatable=True).startswith(
        "it does not repeat even without a kill"
    )
    for unrepeatable in (False, True):
        assert "tf.random" in likely_cause(OUTCOME, other, unrepeatable)


SHARDS = ["batch.shards=4", "model._target_=tests.support.toy_models.everything"]


@pytest.mark.slow
def test_resumable_experiment_passes_and_leaves_nothing(tmp_path):
    options = ["verify.kills=2", "verify.seed=2", "strategy=multi_worker", *SHARDS]
    out = succeed(tmp_path, *SHORT, *options)
    assert "Equal: step 24, " in out
    assert list((tmp_path / "runs").iterdir()) == []


DRAWS = '''
import numpy as np
import tensorflow as tf

class Draws(tf.keras.layers.Layer):
    """Adds what NumPy draws in each step: its state is in no checkpoint."""

    def call(self, x):
        drawn = tf.numpy_function(lambda: np.float32(np.random.uniform()), [], tf.float32)
        return x + tf.ensure_shape(drawn, [])


def model(input_shape, num_classes):
    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            Draws(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(num_classes),
        ]
    )
'''

TIMED = """
import dataclasses
import time
import tensorflow as tf
from trainer.datasets import digits

def dataset():
    made = digits.digits()
    shift = time.time_ns() % 1009
    split = made.train

    class Shifted:
        num_examples, in_memory = split.num_examples, split.in_memory

        def fetch(self, indices):
            return split.fetch((indices + shift) % split.num_examples)

    return dataclasses.replace(made, train=Shifted())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "code_of_user", "target", "cause"),
    [
        (
            "model",
            DRAWS,
            "user_code.model",
            "something that the next step depends on is in no checkpoint",
        ),
        ("dataset", TIMED, "user_code.dataset", "it does not repeat even without a kill"),
    ],
)
def test_unsaved_state_and_order_that_depends_on_the_time_are_found(
    tmp_path, group, code_of_user, target, cause
):
    (tmp_path / "user_code.py").write_text(code_of_user)
    (tmp_path / "own" / group).mkdir(parents=True)
    (tmp_path / "own" / group / "theirs.yaml").write_text(f"# theirs\n_target_: {target}\n")
    options = [item for item in SMALL if not item.startswith(f"{group}=")]
    code, out, err = run(tmp_path, *options, "verify.seed=3", "--config-dir=own", f"{group}=theirs")
    assert code == 1, out + err
    assert f"likely cause: {cause}" in err, out + err
    (kept,) = (tmp_path / "runs").iterdir()
    assert {path.name.partition("-")[0] for path in kept.iterdir()} == {
        "again",
        "killed",
        "straight",
    }


@pytest.mark.slow
def test_parameter_servers_are_verified_by_their_number_of_steps(tmp_path):
    out = succeed(tmp_path, *SMALL, "verify.seed=4", "strategy=parameter_server")
    assert "Finished with exactly 24 steps" in out
