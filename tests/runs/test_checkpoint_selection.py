"""The checkpoint that `checkpoint=latest|best|<step>` selects."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from trainer.cli.compose import compose
from trainer.cli.overrides import rewrite
from trainer.config.schema import Best, Checkpoint
from trainer.errors import ConfigError
from trainer.runs.checkpoint_marker import commit
from trainer.runs.checkpoint_retention import select_step

ACCURACY = {10: 0.5, 20: 0.9, 30: 0.7}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "run" / "checkpoints"
    directory.mkdir(parents=True)
    for step, accuracy in ACCURACY.items():
        (directory / f"ckpt-{step}.index").write_text(f"index {step}")
        commit(directory, step, {"loss": 1 - accuracy, "accuracy": accuracy})
    task = {"_target_": "trainer.tasks.classification.Classification"}
    (directory.parent / "config.yaml").write_text(yaml.safe_dump({"task": task, "metrics": {}}))
    return directory.parent


def best(metric: str | None, mode: str = "auto") -> Checkpoint:
    return Checkpoint(use="best", best=Best(metric=metric, mode=mode))


def problem(run_dir: Path, checkpoint: Checkpoint) -> str:
    with pytest.raises(ConfigError) as caught:
        select_step(run_dir, checkpoint)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0].replace(str(run_dir), "<run>")


def test_select_step_finds_latest_best_and_a_step(run_dir: Path) -> None:
    assert select_step(run_dir, Checkpoint()) == 30
    assert select_step(run_dir, Checkpoint(use=10)) == 10
    assert select_step(run_dir, best("accuracy")) == 20
    assert select_step(run_dir, best("loss")) == 20
    assert select_step(run_dir, best("accuracy", "min")) == 10


def test_latest_is_the_newest_valid_checkpoint(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "ckpt-30.index").write_text("index 3O")
    assert select_step(run_dir, Checkpoint()) == 20
    assert problem(run_dir, Checkpoint(use=30)) == (
        "checkpoint (30): that of step 30 is damaged: "
        "the content of ckpt-30.index has changed; there are 10, 20, 30"
    )
    for step in (10, 20):
        (run_dir / "checkpoints" / f"ckpt-{step}.index").unlink()
    assert problem(run_dir, Checkpoint()).startswith(
        "no checkpoint of <run> can be trusted (step 30: the content of ckpt-30.index has"
    )


def test_select_step_reports_missing_checkpoints(run_dir: Path) -> None:
    assert (
        problem(run_dir, Checkpoint(use=15))
        == "checkpoint (15): <run> has no checkpoint of this step; there are 10, 20, 30"
    )
    assert problem(run_dir, best(None)) == (
        "checkpoint (best) needs to know by what: this run keeps none; "
        "add checkpoint.best.metric=accuracy"
    )
    assert problem(run_dir, best("acuracy")) == (
        "checkpoint (best): no checkpoint was saved with checkpoint.best.metric (acuracy); "
        "they have accuracy, loss; did you mean 'accuracy'?"
    )
    shutil.rmtree(run_dir / "checkpoints")
    assert problem(run_dir, Checkpoint()) == "<run> has no checkpoint yet; train it first"


def test_checkpoint_short_form_sets_the_key() -> None:
    for word in ("best", "120", "'best'"):
        assert rewrite([f"checkpoint={word}"])[0] == [f"checkpoint.use={word.strip(chr(39))}"]
    assert rewrite(["checkpoint=every_50_steps"])[0] == ["checkpoint=every_50_steps"]


def test_run_keeps_its_own_checkpoint_choice(run_dir: Path) -> None:
    saved = ["checkpoint=every_50_steps", "checkpoint.best.metric=accuracy"]
    (run_dir / "run.json").write_text(json.dumps({"overrides": saved, "config_dir": None}))
    experiment = compose([f"resume={run_dir}", "mode=evaluate", "checkpoint=best"])
    options = experiment.checkpoint
    assert experiment.choices["checkpoint"] == "every_50_steps"
    assert (options.use, options.best.metric, options.keep) == ("best", "accuracy", 3)
    assert select_step(run_dir, options) == 20
