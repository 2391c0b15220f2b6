"""Programs whose layers draw or keep what Keras does not see: right to the bit, or refused."""

from pathlib import Path

import pytest

from tests.support.marks import first_only
from tests.support.processes import ROOT, only_run, run
from trainer.launch.modes.run_comparison import differences, read

PROGRAMS = ROOT / "tests" / "programs"
LAYOUTS = {
    "one_device": ("strategy=one_device",),
    "mirrored": ("strategy=mirrored", "strategy.virtual_devices=2"),
    "multi_worker": ("strategy=multi_worker",),
}


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Return a function that runs a program: model, layout, further overrides."""
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))

    def call(model, layout, *overrides):
        directory = tmp_path / f"{layout}-{len(list(Path(tmp_path).iterdir()))}"
        directory.mkdir()
        code, out, err = run(
            directory, "model=softmax", "~model.l2", f"model._target_={model}", *LAYOUTS[layout],
            "train.steps=6", "batch.global_size=16", "batch.shards=2", "evaluate.every_steps=3",
            "checkpoint.every_steps=2", "writers=[jsonl]", "restart.backoff_secs=0", *overrides,
        )  # fmt: skip
        return code, out, err, directory

    return call


@pytest.mark.long
@pytest.mark.parametrize("draw", first_only(["backend", "function"]))
def test_vae_that_draws_by_tensorflow_is_the_same_everywhere_and_after_a_kill(command, draw):
    runs = []
    kill = "+fault.kill={action:kill,process:worker-1,phase:step,at:5}"
    for layout, *fault in (["one_device"], ["mirrored"], ["multi_worker", kill]):
        code, out, err, directory = command(
            "vae_tf_random.vae", layout, f"+model.draw={draw}", *fault
        )
        assert code == 0, f"{out}\n{err}"
        runs.append(read(only_run(directory)))
    one_device, mirrored, killed = runs
    assert differences(one_device, mirrored) == []
    assert differences(one_device, killed) == []
    assert [name for _, name in killed.kills] == ["kill (worker-1 at step 5)"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout", "overrides", "problem"),
    [
        (
            "untracked_variable.scaled", "one_device", (),
            "reads the variable scale/factor:0 (shape []), which is",
        ),
        ("vae_tf_random.vae", "multi_worker", ("+model.draw=raw",), "RandomStandardNormal in "),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_in_one_line(command, layout, model, overrides, problem):
    code, out, err, directory = command(model, layout, *overrides)
    assert code == 2, f"{out}\n{err}"
    (line,) = err.splitlines()
    assert line.startswith("error: the training step: ")
    assert problem in line
    assert not (directory / "runs").exists()
