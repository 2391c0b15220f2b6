"""A run that pauses at an evaluation, and continues with the same bits."""

import pytest

from tests.support.processes import assert_same_run, final_variables, only_run, succeed
from tests.support.training import assert_same_bits
from trainer.runs.checkpoint_marker import committed_steps

OPTIONS = (
    "model=softmax", "train.steps=8", "train.epochs=null", "evaluate.every_steps=2",
    "evaluate.every_epochs=null", "batch.global_size=32", "optimizer=adam", "schedule=cosine",
    "writers=[jsonl]", "checkpoint.keep=9",
)  # fmt: skip
LAYOUTS = {
    "mirrored": ("strategy=mirrored", "strategy.virtual_devices=2"),
    "multi_worker": ("strategy=multi_worker", "strategy.workers=2"),
    "parameter_server": ("strategy=parameter_server",),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_paused_run_exits_with_0_and_resume_continues_it(tmp_path, layout):
    paused, straight = tmp_path / "paused", tmp_path / "straight"
    paused.mkdir()
    straight.mkdir()
    options = (*OPTIONS, *LAYOUTS[layout])
    out = succeed(paused, *options, "pause.at_step=3")
    run_dir = only_run(paused)
    assert "Paused after step 4; the same command without pause continues." in out
    assert (committed_steps(run_dir / "checkpoints")[-1], list(run_dir.glob("result.json"))) == (
        4, [],
    )  # fmt: skip
    assert f"resume=runs/{run_dir.name}" in out
    succeed(paused, f"resume=runs/{run_dir.name}")
    assert committed_steps(run_dir / "checkpoints")[-1] == 8
    if layout != "parameter_server":  # whose updates are asynchronous
        succeed(straight, *options)
        assert_same_run(run_dir, only_run(straight))


@pytest.mark.slow
def test_branch_continues_from_the_whole_state_of_a_run(tmp_path):
    options = (*OPTIONS, "schedule=constant")
    succeed(tmp_path, *options)
    origin = only_run(tmp_path)
    longer = (*options, "train.steps=12")
    succeed(tmp_path, *longer, f"init_from=runs/{origin.name}", "init_state=true")
    (branch,) = (path for path in (tmp_path / "runs").iterdir() if path != origin)
    straight = tmp_path / "straight"
    straight.mkdir()
    succeed(straight, *longer)
    assert committed_steps(origin / "checkpoints")[-1] == 8
    assert_same_bits(final_variables(branch), final_variables(only_run(straight)))
