"""What holds for every strategy there is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run_apart
from trainer import build
from trainer.cli import compose
from trainer.errors import ConfigError
from trainer.strategies.base import Strategy

ROOT = Path(__file__).resolve().parents[2]
CHOICES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))
OWN_OPS = "strategy.cross_device_ops={_target_:tests.strategies.toy_ops.CountingOps,step:2}"


@pytest.mark.parametrize("choice", CHOICES)
def test_the_defaults_in_the_file_are_those_in_the_code(choice):
    made = build.strategy_of(compose([f"strategy={choice}"]))
    assert isinstance(made, Strategy)
    assert vars(made) == vars(type(made)())


@pytest.mark.parametrize("lines", [[f"strategy={choice}" for choice in CHOICES], [f"strategy=mirrored {OWN_OPS}"]], ids=["all", "own ops"])
def test_strategies_are_made_without_tensorflow(tmp_path, lines):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise SystemExit('TensorFlow was imported')\n")
    code = (
        "import sys\nfrom trainer import build, cli\n"
        "for overrides in sys.argv[1:]: build.strategy_of(cli.compose(overrides.split()))\n"
        "print('made', len(sys.argv) - 1)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code, *lines], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"made {len(lines)}"), done.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (OWN_OPS.replace("step", "stp"), "unknown key 'strategy.cross_device_ops.stp'; did you mean 'step'?"),
        (OWN_OPS.replace("CountingOps", "CountngOps"), "strategy.cross_device_ops._target_ (tests.strategies.toy_ops.CountngOps): no "),
        ("strategy.cross_device_ops=ncl", "strategy.cross_device_ops (ncl) must be one of auto, nccl, "),
        ("strategy.num_packs=-1", "strategy.num_packs (-1) must be >= 0"),
        ("strategy.devices=GPU:0", "strategy.devices ('GPU:0') must be a list of str or null"),
    ],
)
def test_wrong_options_are_told_before_anything_is_imported(line, problem):
    with pytest.raises(ConfigError) as raised:
        compose(["strategy=mirrored", line])
    assert raised.value.problems[0].startswith(problem)
    assert len(raised.value.problems) == 1


NO_TPU = {"TPU_NAME": "", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": ""}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("strategy=tpu", "error: strategy.name (null) must be set, for no TPU is declared here: "),
        (
            "strategy=mirrored strategy.virtual_devices=2 strategy.cross_device_ops=nccl",
            "error: strategy.cross_device_ops (nccl) needs GPUs, and the devices are CPU:0, CPU:1; use auto",
        ),
        ("strategy=central_storage strategy.parameter_device=host", "error: strategy.parameter_device (host) must be a device, "),
    ],
)
def test_the_parent_says_in_one_line_what_cannot_work(tmp_path, line, problem):
    (tmp_path / "here").mkdir()
    done = run_apart(*line.split(), cwd=tmp_path / "here", env=NO_TPU)
    assert done.code == 2
    assert done.err.startswith(problem)
    assert done.err.count("\n") == 1
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (
            "strategy=mirrored strategy.devices=[CPU:0,GPU:7]",
            2,
            "error: strategy.devices (GPU:7) does not exist here; choose among CPU:0\n",
        ),
        ("strategy=auto train.epochs=null train.steps=1", 0, "auto chose one_device: no GPU\n"),
    ],
)
def test_the_worker_says_what_takes_tensorflow_to_tell(tmp_path, line, code, said):
    command = [sys.executable, str(ROOT / "train.py"), *line.split()]
    env = {**os.environ, **NO_TPU, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert (tmp_path / "runs").exists() == (code == 0)
