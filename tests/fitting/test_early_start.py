"""The fork server of a script, which starts when `fit` is imported."""

import os
import subprocess
import sys
from pathlib import Path

from trainer import fit
from trainer.cluster import environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
from trainer import fit
import keras, os, tensorflow

from trainer.cluster import environment
from trainer.fitting.carried import import_folders
from trainer.launch.processes.fork_server import ForkServer

environment.replace(environment.of_command(import_folders(), 0))
print(environment.fork_server())
print(ForkServer.acquire().directory)
"""


def test_a_command_of_a_script_uses_the_server_that_started_with_its_first_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    early, used = done.stdout.split()
    assert early == used != "None"


def test_tests_and_other_programs_start_none() -> None:
    assert callable(fit)
    assert environment.fork_server() is None
