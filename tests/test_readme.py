"""What the README shows is run: its files are written as shown, its commands executed."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from tests.processes import ROOT, TIMEOUT_SECS, only_run, run

README = (ROOT / "README.md").read_text()


def commands():
    """Gives every `python train.py` line without its comment."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.startswith("python train.py")]


@pytest.mark.slow
def test_a_project_of_ones_own(tmp_path):
    files = dict(re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", README, re.DOTALL))
    assert set(files) == {"nets.py", "rings.py", "conf/model/tiny.yaml", "conf/dataset/rings.yaml"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (line,) = re.findall(r"^steadfast (.*)$", README, re.MULTILINE)
    code, _out, err = run(tmp_path, *shlex.split(line))
    assert code == 0, err
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["metrics"]["accuracy"] > 0.9
    code, _, err = run(tmp_path, *shlex.split(line), "model.hiden=8")
    assert (code, err) == (2, "error: unknown key 'model.hiden'; did you mean 'hidden'?\n")


@pytest.mark.parametrize("command", commands())
def test_commands_compose(command, tmp_path, monkeypatch):
    from trainer.cli import compose
    from trainer.errors import ConfigError

    monkeypatch.chdir(tmp_path)
    for name in ("mnist.npz", "cifar-10-batches-py"):
        (tmp_path / name).touch()
    overrides = [part for part in shlex.split(command)[2:] if part != "-m"]
    point = [part.split(",")[0] for part in overrides]
    if point == ["resume=runs/<run>"]:
        with pytest.raises(ConfigError, match=r"^resume \(runs/<run>\)"):
            compose(point)
    else:
        compose(point)


@pytest.mark.slow
def test_the_shown_modes(tmp_path):
    short = ["train.steps=3", "model=softmax", "train.ema_decay=0.9"]
    assert run(tmp_path, *short)[0] == 0
    run_dir = only_run(tmp_path)
    result = json.loads((run_dir / "result.json").read_text())
    code, _, err = run(tmp_path, "mode=evaluate", f"resume={run_dir}")
    assert code == 0, err
    assert json.loads((run_dir / "evaluation-3.json").read_text())["metrics"] == result["metrics"]
    code, _out, err = run(tmp_path, "mode=export", f"resume={run_dir}")
    assert code == 0, err
    # A fresh process with plain TensorFlow predicts with the averaged weights: what was evaluated.
    program = """
import sys, numpy as np, tensorflow as tf
served, reader = tf.saved_model.load(sys.argv[1]), tf.train.load_checkpoint(sys.argv[2])
averages = [reader.get_tensor(f"averages/model/{i}/.ATTRIBUTES/VARIABLE_VALUE") for i in range(2)]
images = np.random.default_rng(0).uniform(size=(5, 8, 8, 1)).astype(np.float32)
print(np.abs(served.serve(images) - (images.reshape(5, 64) @ averages[0] + averages[1])).max() < 1e-6)
"""
    shown = subprocess.run(
        [sys.executable, "-c", program, str(run_dir / "export" / "model-3"), str(run_dir / "checkpoints" / "ckpt-3")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECS,
        check=True,
    )
    assert shown.stdout.strip() == "True"


@pytest.mark.slow
def test_a_sweep_trains_every_point(tmp_path):
    code, out, err = run(tmp_path, "-m", "model=softmax,cnn", "train.steps=2")
    assert code == 0, err
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "runs").iterdir()) == ["cnn", "softmax", "sweeps"]
    assert [line.partition(",")[0] for line in out.splitlines() if "done," in line] == [
        "point 1 of 2 (model=softmax): done",
        "point 2 of 2 (model=cnn): done",
    ]


@pytest.mark.slow
def test_inline_trains_in_the_parent(tmp_path):
    code, out, err = run(tmp_path, "launch=inline", "train.steps=2", "model=softmax")
    assert code == 0, err
    assert "Done: step 2" in out
