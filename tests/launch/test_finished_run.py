"""A command for a run that needs no training: what it says, and that it changes nothing."""

import importlib
import json
import sys

import pytest

from tests.support.command_line import run_here
from trainer.cli.compose import compose
from trainer.runs import provenance
from trainer.runs.directory import open_run
from trainer.runs.provenance import ImportedCode

SHORT = ["model=softmax", "train.epochs=2"]
RESULT = {
    "step": 34, "metrics": {"loss": 0.5}, "best": None, "attempts": 1, "goodput": 0.5,
    "wall_secs": 3, "time": {}, "train": {"steps": None, "epochs": 3},
}  # fmt: skip


@pytest.fixture
def extended(tmp_path, monkeypatch):
    """A run that was extended from two to three epochs, and has a checkpoint of each."""
    monkeypatch.chdir(tmp_path)
    run = open_run(compose(SHORT), SHORT, None)
    run.release()
    more = [f"resume={run.path}", "train.epochs=3"]
    longer = open_run(compose(more), more, None)
    longer.record_continuation(["model=softmax", "train.epochs=3"], None)
    provenance.update(run.path, total_steps=34, steps_per_epoch=11.25)
    (run.path / "checkpoints").mkdir()
    for step in (23, 34):
        (run.path / "checkpoints" / f"ckpt-{step}.json").write_text("{}")
    longer.release()
    return run.path


def contents(path):
    return {
        file.name: file.read_bytes() for file in path.rglob("*.*") if file.name not in (".lock",)
    }


def test_first_command_of_an_extended_run_is_finished(extended):
    (extended / "result.json").write_text(json.dumps(RESULT))
    before = contents(extended)
    done = run_here(*SHORT)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        "Already finished: step 34, which is at or past train.epochs=2, test loss 0.5000"
    )
    assert f"Run directory: {extended}\n" in done.out
    assert contents(extended) == before
    done = run_here(f"resume={extended}")
    assert done.out.startswith("Already finished: step 34, test loss 0.5000")
    assert contents(extended) == before


def test_first_command_does_not_end_an_extension(extended):
    before = contents(extended)
    done = run_here(*SHORT)
    assert (done.code, done.err) == (0, "")
    assert f"resume={extended} train.steps=34" in done.out.splitlines()[0]
    assert contents(extended) == before


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Two of the user's modules, which were imported, and a function that records them in a run."""
    files = [tmp_path / "my_net.py", tmp_path / "my_layers.py"]
    monkeypatch.syspath_prepend(str(tmp_path))
    for file in files:
        file.write_text("width = 1\n")
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
        importlib.import_module(file.stem)
    imported = ImportedCode()
    imported.update()
    mine = {file.stem: imported.fingerprints[file.stem] for file in files}
    return files, lambda path: provenance.update(path, code=mine)


CHANGED = (
    "warning: the run was trained with other code in my_layers.py, my_net.py; for a run with the "
    "code as it is now use resume=never, or another name=<name>"
)


def test_finished_run_names_code_that_has_changed_since(extended, code):
    (extended / "result.json").write_text(json.dumps(RESULT))
    files, record = code
    record(extended)
    assert "warning" not in run_here(*SHORT).out
    files[0].write_text("width = 2\n")
    files[1].unlink()
    assert run_here(*SHORT).out.splitlines()[2] == CHANGED
