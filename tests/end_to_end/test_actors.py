"""Actors and learner as processes: kills, and several workers."""

import json
import os
import random
import signal

import pytest

from tests.support.processes import (
    final_variables,
    finish,
    only_run,
    start,
    succeed,
    wait_gone,
    wait_until,
    worker_pids,
)

LENGTH, BATCH = 5, 4
SMALL = (
    "task=impala", "env=catch", "env.rows=4", "env.columns=3", "model=mlp", "model.hidden=[8]",
    f"task.unroll_length={LENGTH}", f"batch.global_size={BATCH}", "actors.environments=2",
    "train.epochs=null", "train.steps_per_epoch=1000", "evaluate.every_epochs=null",
    "evaluate.episodes=2", "checkpoint.every_epochs=null", "writers=[jsonl]",
    "restart.backoff_secs=0",
)  # fmt: skip


def has_killed(directory, name):
    """Kill a process of the run; return whether there was one."""
    pid = worker_pids(directory).get(name)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended just now, with the learner's attempt
        return False
    return True


def check_counts(counts, step):
    """Check that the frames of a checkpoint add up."""
    generated, dropped, lost, waiting = map(int, counts)
    assert generated == step * BATCH * LENGTH + dropped + lost + waiting
    assert min(dropped, lost, waiting) >= 0


@pytest.mark.slow
def test_run_survives_kills_of_actors_learner_and_supervisor(tmp_path):
    victims = ["actor-0", "worker-0", "actor-1", "supervisor"]
    victims = random.Random(16).sample(victims, len(victims))
    command = (
        *SMALL, "train.steps=100000", "checkpoint.every_steps=40", "summary.every_steps=5",
        "actors.max_restarts=20", "restart.max_restarts=20",
    )  # fmt: skip
    process = start(tmp_path, *command)
    before = []

    def has_advanced():
        file = only_run(tmp_path) / "metrics.jsonl"
        now = file.read_text().splitlines() if file.exists() else []
        return now != before and now

    for victim in victims:
        wait_until((tmp_path / "runs").exists, process)
        before = wait_until(has_advanced, process)
        if victim == "supervisor":
            pids = worker_pids(tmp_path)
            process.kill()
            finish(process)
            for pid in pids.values():
                wait_gone(pid)
            process = start(tmp_path, *command)
        else:
            wait_until(lambda victim=victim: has_killed(tmp_path, victim), process)
    before = wait_until(has_advanced, process)
    process.terminate()
    code, out, _ = finish(process)
    assert code == 143, out
    assert worker_pids(tmp_path) == {}
    run_dir = only_run(tmp_path)
    variables = final_variables(run_dir)
    step = int(variables["step/.ATTRIBUTES/VARIABLE_VALUE"])
    check_counts(variables["frames/counts/.ATTRIBUTES/VARIABLE_VALUE"], step)
    out = succeed(tmp_path, f"resume={run_dir}", f"train.steps={step + 10}")
    result = json.loads((run_dir / "result.json").read_text())
    assert result["frames"] == (step + 10) * BATCH * LENGTH
    assert f"Frames: {result['frames']:,} trained" in out


@pytest.mark.slow
def test_workers_that_train_together_share_the_batches_of_the_same_actors(tmp_path):
    succeed(
        tmp_path, *SMALL, "strategy=multi_worker", "train.steps=30", "evaluate.every_steps=10",
        "checkpoint.every_steps=10", "actors.count=1",
    )  # fmt: skip
    result = json.loads((only_run(tmp_path) / "result.json").read_text())
    assert result["frames"] == 30 * BATCH * LENGTH
    assert set(result["metrics"]) == {"return", "episode_length"}
    assert worker_pids(tmp_path) == {}


REPLAY_LENGTH, REPLAY_BATCH, STEPS, MIN_SIZE, RATIO = 4, 8, 120, 20, 16


@pytest.mark.slow
def test_killed_learner_refills_its_replay_and_continues(tmp_path):
    pytest.importorskip("gymnasium")
    out = succeed(
        tmp_path, "experiment=d4pg_pendulum", "task.policy.hidden=[8]", "task.critic.hidden=[8]",
        "task.num_atoms=5", f"task.unroll_length={REPLAY_LENGTH}",
        f"batch.global_size={REPLAY_BATCH}", f"buffer.min_size={MIN_SIZE}",
        f"buffer.samples_per_insert={RATIO}", f"train.steps={STEPS}", "train.steps_per_epoch=30",
        "evaluate.every_steps=null", "evaluate.episodes=1", "checkpoint.every_steps=30",
        "actors.count=1", "actors.environments=2", "writers=[jsonl]", "restart.backoff_secs=0",
        "fault=kill_chief_at_50",
    )  # fmt: skip
    assert "(memory of worker-0)" in out
    result = json.loads((only_run(tmp_path) / "result.json").read_text())
    assert result["frames"] == STEPS * REPLAY_BATCH * REPLAY_LENGTH
    assert set(result["metrics"]) == {"return", "episode_length"}
    # Each of two attempts fills the replay once; then draws and unrolls keep step. An environment
    # more than there is room for is sent at a time.
    unrolls = result["frames_generated"] / REPLAY_LENGTH
    assert unrolls <= 2 * (MIN_SIZE + 1) + STEPS * REPLAY_BATCH / RATIO
    assert unrolls >= MIN_SIZE - 1 + (STEPS - 60) * REPLAY_BATCH / RATIO
    assert worker_pids(tmp_path) == {}
