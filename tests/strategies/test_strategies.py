"""What holds for every strategy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.cli.compose import compose
from trainer.strategies import select
from trainer.strategies.strategy import Strategy

ROOT = Path(__file__).resolve().parents[2]
CHOICES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))
OWN_OPS = "strategy.cross_device_ops={_target_:tests.support.toy_ops.CountingOps,step:2}"


@pytest.mark.parametrize("choice", CHOICES)
def test_defaults_in_yaml_are_those_in_code(choice):
    strategy = select.select_strategy(compose([f"strategy={choice}"]))
    assert isinstance(strategy, Strategy)
    assert vars(strategy) == vars(type(strategy)())


@pytest.mark.slow
def test_strategies_are_created_without_tensorflow(tmp_path):
    lines = [*(f"strategy={choice}" for choice in CHOICES), f"strategy=mirrored {OWN_OPS}"]
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "raise SystemExit('TensorFlow was imported')\n"
    )
    code = (
        "import sys\nfrom trainer.cli.compose import compose\nfrom trainer.strategies import "
        "select\n"
        "for overrides in sys.argv[1:]: select.select_strategy(compose(overrides.split()))\n"
        "print('created', len(sys.argv) - 1)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code, *lines],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"created {len(lines)}"), done.stderr


NO_TPU = {"TPU_NAME": "", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": ""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (
            "strategy=mirrored strategy.devices=[CPU:0,GPU:7]",
            2,
            "error: strategy.devices (GPU:7) does not exist here; choose among CPU:0\n",
        ),
        ("strategy=auto train.epochs=null train.steps=1", 0, "auto chose one_device: no GPU\n"),
    ],
)
def test_worker_reports_what_only_tensorflow_knows(tmp_path, line, code, message):
    command = [sys.executable, str(ROOT / "train.py"), *line.split()]
    env = {**os.environ, **NO_TPU, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code
    assert message in done.stdout + done.stderr
    assert (tmp_path / "runs").exists() == (code == 0)
