"""Acting in the learner's process: who is in a batch, and who gets what of it."""

import threading
import time

import numpy as np
import pytest

from trainer.protocols import EnvSpec
from trainer.reinforcement.batched_inference import BatchedInference, PolicyError

SPEC = EnvSpec((2,), "float32", (), "int64", 3)


class Policy:
    """Waits for leave to act; returns the first component of each observation."""

    def __init__(self):
        self.may_act = threading.Event()
        self.sizes = []
        self.seeds = []
        self.assigned = []

    def assign(self, weights):
        self.assigned.append(float(weights[0]))

    def act(self, observations, seed, exploration):
        self.sizes.append(len(observations))
        self.seeds.append(tuple(seed))
        assert self.may_act.wait(60)
        if (observations < 0).any():
            raise RuntimeError("no way to act")
        return {"action": observations[:, 0].astype(np.int64), "shown": exploration}


@pytest.fixture
def policy():
    made = Policy()
    yield made
    made.may_act.set()


@pytest.fixture
def inference(policy):
    made = BatchedInference(policy, SPEC, seed=3)
    made.publish(7, [np.array(0.5)])
    return made


def ask(inference, answers, number, count, sign=1.0):
    """Ask for `count` environments in a thread; keep what comes of it under `number`."""

    def run():
        observations = np.full([count, 2], sign * number, np.float32)
        try:
            answers[number] = inference.act(observations, np.full(count, number / 10, np.float32))
        except PolicyError as error:
            answers[number] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_those_who_ask_meanwhile_are_one_batch_and_each_gets_its_own(policy, inference):
    answers = {}
    threads = [ask(inference, answers, 1, count=2)]
    wait_until(lambda: policy.sizes == [2])
    threads += [ask(inference, answers, number, count=number) for number in (2, 3, 4)]
    wait_until(lambda: len(inference._waiting) == 3)
    inference.publish(8, [np.array(0.25)])
    policy.may_act.set()
    for thread in threads:
        thread.join(60)
    assert policy.sizes == [2, 9]
    assert policy.assigned == [0.5, 0.25]
    assert policy.seeds[0] != policy.seeds[1]
    for number, (version, outputs) in answers.items():
        size = 2 if number == 1 else number
        assert version == (7 if number == 1 else 8)
        np.testing.assert_array_equal(outputs["action"], np.full(size, number))
        np.testing.assert_array_equal(outputs["shown"], np.full(size, number / 10, np.float32))


def test_failure_is_told_to_the_whole_batch_and_the_next_one_is_answered(policy, inference):
    answers = {}
    threads = [ask(inference, answers, 1, count=1)]
    wait_until(lambda: policy.sizes == [1])
    threads += [ask(inference, answers, number, count=1, sign=-1.0) for number in (2, 3)]
    wait_until(lambda: len(inference._waiting) == 2)
    policy.may_act.set()
    for thread in threads:
        thread.join(60)
    assert answers[1][0] == 7
    assert [str(answers[number]) for number in (2, 3)] == ["no way to act"] * 2
    ask(inference, answers, 5, count=1).join(60)
    assert answers[5][1]["action"].tolist() == [5]


def test_weights_are_assigned_once_for_each_version(policy, inference):
    policy.may_act.set()
    for _ in range(3):
        inference.act(np.zeros([1, 2], np.float32), np.ones(1, np.float32))
    assert policy.assigned == [0.5]
