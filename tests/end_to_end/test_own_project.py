"""Everything that users can define, in the example of a project: each trains a few steps."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from trainer.runs.checkpoint_marker import committed_steps

PROJECT = Path(__file__).resolve().parents[2] / "docs" / "examples" / "own_project"

slow = pytest.mark.slow

PARTS = {
    "model": ["model=listener", "dataset=waves"],
    "task": ["task=hinge", "model=softmax"],
    "metric": ["metrics=confidence", "model=softmax"],
    "callback": ["callbacks=good_enough", "model=softmax", "callbacks.good_enough.loss=100"],
    "optimizer": ["optimizer=sign", "model=softmax"],
    "schedule": ["schedule=inverse", "model=softmax"],
    "augmentation": ["augment=inverted", "model=softmax"],
    "writer": ["writers=text", "model=softmax"],
    "save policy": ["checkpoint=at_steps", "model=softmax"],
    "retention policy": ["checkpoint=powers_of_two", "model=softmax"],
    "fault": ["fault=neighbor", "model=softmax"],
}
PROCESSES = {
    "environment": ["experiment=impala_catch", "env=echo", "model=mlp", "evaluate.every_steps=2"],
    "loop": [
        "loop=count",
        "launch=inline",
        "checkpoint=at_steps",
        "checkpoint.save_policy.steps=[3]",
    ],
    "exchange": ["strategy=vote", "model=softmax"],
}
"""What has no evaluation like the others, or no process alone."""
RESULT = {
    "metric": lambda run: "confidence" in json.loads((run / "result.json").read_text())["metrics"],
    "callback": lambda run: json.loads((run / "result.json").read_text())["step"] == 2,
    "save policy": lambda run: committed_steps(run / "checkpoints") == [2, 4],
    "loop": lambda run: committed_steps(run / "checkpoints") == [3, 4],
    "retention policy": lambda run: (
        committed_steps(run / "checkpoints") == [1, 2, 4]
        and run_here("checkpoints", str(run)).out.count("power of two") == 3
    ),
    "writer": lambda run: "\ntest 2 " in (run / "metrics.txt").read_text(),
    "fault": lambda run: (run / "faults" / "neighbor.json").exists(),
}
"""What shows that the part was used, where its training does not."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    path = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(path)
    return path


def train(*options):
    """Train at most four steps, and return the run directory, whose record names the part."""
    outcome = run_here(*options, "train.steps=4", "runs_dir=runs")
    assert outcome.code == 0, outcome
    (run,) = Path("runs").iterdir()
    assert re.search(r"_target_: (parts|nets)\.", (run / "config.yaml").read_text())
    return run


@pytest.mark.slow
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("part", PARTS)
def test_part_of_a_project_trains(part):
    run = train(*PARTS[part], "evaluate.every_steps=2", "launch=inline")
    assert RESULT.get(part, lambda run: True)(run)


@pytest.mark.slow
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[slow] * (part == "exchange")) for part in PROCESSES]
)
def test_part_of_a_project_trains_in_its_processes(part):
    run = train(*PROCESSES[part])
    assert json.loads((run / "result.json").read_text())["step"] == 4
    assert RESULT.get(part, lambda run: True)(run)


@pytest.mark.slow
def test_search_of_a_project_ends_a_sweep(project):
    options = ["search.accuracy=0", "model=softmax", "seed=1,2", "train.steps=4", "runs_dir=runs"]
    outcome = run_here("-m", "search=until_good", *options)
    assert outcome.code == 0, outcome
    assert "2 points: 1 done, 1 waiting" in outcome.out
