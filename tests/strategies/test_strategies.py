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
