"""D4PG on processes: a killed learner refills its replay and goes on, with exact counts."""

import json

import pytest

from tests.support.processes import only_run, run, worker_pids

pytest.importorskip("gymnasium")

LENGTH, BATCH, STEPS, MIN_SIZE, RATIO = 4, 8, 120, 20, 16
SMALL = (
    "experiment=d4pg_pendulum", "task.policy.hidden=[8]", "task.critic.hidden=[8]",
    "task.num_atoms=5", f"task.unroll_length={LENGTH}", f"batch.global_size={BATCH}",
    f"buffer.min_size={MIN_SIZE}", f"buffer.samples_per_insert={RATIO}", f"train.steps={STEPS}",
    "train.steps_per_epoch=30", "evaluate.every_steps=null", "evaluate.episodes=1",
    "checkpoint.every_steps=30", "actors.count=1", "actors.environments=2", "writers=[jsonl]",
    "restart.backoff_secs=0",
)  # fmt: skip


@pytest.mark.slow
def test_killed_learner_refills_its_replay_and_continues(tmp_path):
    code, out, err = run(tmp_path, *SMALL, "fault=kill_chief_at_50")
    assert code == 0, out + err
    assert "Continuing from the checkpoint of step" in out
    result = json.loads((only_run(tmp_path) / "result.json").read_text())
    assert result["frames"] == STEPS * BATCH * LENGTH
    assert set(result["metrics"]) == {"return", "episode_length"}
    # Each of two attempts fills the replay once; then draws and unrolls keep step. An environment
    # more than there is room for is sent at a time.
    unrolls = result["frames_generated"] / LENGTH
    assert unrolls <= 2 * (MIN_SIZE + 1) + STEPS * BATCH / RATIO
    assert unrolls >= MIN_SIZE - 1 + (STEPS - 60) * BATCH / RATIO
    assert worker_pids(tmp_path) == {}
