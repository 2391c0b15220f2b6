"""mode=verify: an experiment of which no kill is seen passes, and what forgets, draws or depends on the time is found."""

import dataclasses

import pytest

from tests.processes import OPTIONS, run
from trainer.cli import compose
from trainer.differences import Outcome, causes, differences
from trainer.errors import ConfigError
from trainer.verify import moments, shortened

SHORT = [*OPTIONS, "mode=verify", "verify.steps=24", "verify.kills=1"]
OUTCOME = Outcome(
    {"step": 24, "metrics": {"loss": 0.5}, "best": None},
    [{"step": 4, "split": "train", "loss": 2.0}, {"step": 8, "split": "train", "loss": 1.0}],
    {"models/model/w": {"crc32": 1}, "callbacks/mine/best": {"crc32": 2}},
    [(3, "kill_1 (chief at step 3)"), (7, "kill_2 (worker-1 in save 1)")],
)


def test_moments_are_repeated_by_their_seed_and_lie_within_the_run():
    assert moments(["worker-0"], 200, 5, seed=3) == moments(["worker-0"], 200, 5, seed=3)
    found = [fault for seed in range(200) for fault in moments(["worker-0", "worker-1"], 200, 3, seed).values()]
    assert {fault.who for fault in found} == {"supervisor", "worker-0", "worker-1"}
    assert {fault.when for fault in found} == {"step", "evaluate", "save"}
    assert all(0 < fault.at < 200 for fault in found)
    assert all(fault.when == "step" and fault.at <= 67 for fault in found[::3])


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_short_run_has_moments_too(steps):
    for seed in range(20):
        assert all(0 < fault.at < steps for fault in moments(["worker-0"], steps, 4, seed).values() if fault.when == "step")


def test_the_experiment_is_shortened_and_saved_often_enough(tmp_path):
    kills = moments(["worker-0"], 48, 3, 0)
    made = shortened(compose(["verify.steps=48", "mode=verify", "summary.every_steps=1"]), "straight", tmp_path, kills)
    assert (made.mode, made.train.steps, made.train.epochs, made.resume) == ("train", 48, None, "auto")
    assert (made.evaluate.every_steps, made.checkpoint.every_steps, made.summary.every_steps) == (6, 8, 1)
    assert made.fault == kills
    assert shortened(compose(["verify.steps=48", "train.steps=10"]), "straight", tmp_path, {}).train.steps == 10


def test_equal_runs_have_no_differences():
    assert differences(OUTCOME, dataclasses.replace(OUTCOME, kills=())) == []


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
    assert causes(OUTCOME, other, unrepeatable=False).startswith("something that the next step depends on is in no checkpoint")
    assert causes(OUTCOME, other, unrepeatable=True).startswith("it does not repeat even without a kill")


def test_causes():
    ended = dataclasses.replace(OUTCOME, result={**OUTCOME.result, "step": 20}, lines=OUTCOME.lines[:1])
    assert differences(OUTCOME, ended)[0] == "result: step is 20 instead of 24"
    assert causes(OUTCOME, ended, unrepeatable=False).startswith("a callback keeps")
    forgot = dataclasses.replace(OUTCOME, variables={**OUTCOME.variables, "callbacks/mine/best": {"crc32": 9}})
    assert causes(OUTCOME, forgot, unrepeatable=False).startswith("a callback keeps")
    shown = dataclasses.replace(OUTCOME, lines=OUTCOME.lines[:1])
    assert differences(OUTCOME, shown) == ["metrics: the first line that differs is that of step 8, after kill_2 (worker-1 in save 1)"]
    assert causes(OUTCOME, shown, unrepeatable=False).startswith("something that the metrics depend on")


def test_it_brings_its_own_faults():
    with pytest.raises(ConfigError, match=r"mode \(verify\) brings its own faults; remove fault.nan_at_30"):
        compose(["mode=verify", "fault=nan_at_30"])


FORGETS = '''
class Forgets:
    """Ends the training after five evaluations, and counts them where no checkpoint looks."""

    def __init__(self):
        self.count = 0

    def on_evaluate(self, step, metrics):
        self.count += 1
        return self.count == 5
'''


@pytest.mark.slow
def test_a_callback_that_forgets_is_found(tmp_path):
    (tmp_path / "forgets.py").write_text(FORGETS)
    code, out, err = run(tmp_path, *SHORT, "verify.seed=1", "+callbacks.mine={_target_:forgets.Forgets}")
    assert code == 1, out + err
    assert "likely cause: a callback keeps what it knows outside of tf.Variable attributes" in err
    assert "result: step is " in err
    assert "verify.seed=1" in out
    (kept,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name.partition("-")[0] for path in kept.iterdir()) == ["again", "killed", "straight"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [["strategy=one_device"], ["strategy=multi_worker"]])
def test_an_experiment_of_which_no_kill_is_seen_passes_and_leaves_nothing(tmp_path, strategy):
    code, out, err = run(tmp_path, *SHORT, "verify.kills=2", "verify.seed=2", *strategy)
    assert code == 0, out + err
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
        [tf.keras.Input(input_shape), Draws(), tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes)]
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
        num_examples, resident = split.num_examples, split.resident

        def fetch(self, indices):
            return split.fetch((indices + shift) % split.num_examples)

    return dataclasses.replace(made, train=Shifted())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "code_of_user", "target", "cause"),
    [
        ("model", DRAWS, "user_code.model", "something that the next step depends on is in no checkpoint"),
        ("dataset", TIMED, "user_code.dataset", "it does not repeat even without a kill"),
    ],
)
def test_state_that_is_not_saved_and_an_order_that_depends_on_the_time_are_found(tmp_path, group, code_of_user, target, cause):
    (tmp_path / "user_code.py").write_text(code_of_user)
    (tmp_path / "own" / group).mkdir(parents=True)
    (tmp_path / "own" / group / "theirs.yaml").write_text(f"# theirs\n_target_: {target}\n")
    options = [item for item in SHORT if not item.startswith(f"{group}.")]
    code, out, err = run(tmp_path, *options, "verify.seed=3", "--config-dir=own", f"{group}=theirs")
    assert code == 1, out + err
    assert f"likely cause: {cause}" in err


@pytest.mark.slow
def test_of_parameter_servers_the_count_of_steps_is_asked(tmp_path):
    code, out, err = run(tmp_path, *SHORT, "verify.seed=4", "strategy=parameter_server")
    assert code == 0, out + err
    assert "Finished with exactly 24 steps" in out
