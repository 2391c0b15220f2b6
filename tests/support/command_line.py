"""Runs the command line as a user does, in this process for speed or in its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trainer import dispatch

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def run_here(*arguments):
    """Run `python train.py <arguments>` in this process and its working directory."""
    out = io.StringIO()
    err = io.StringIO()
    argv = sys.argv
    path = list(sys.path)
    sys.argv = ["train.py", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            dispatch.main()
    except SystemExit as leaving:
        return Outcome(int(leaving.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.argv = argv
        sys.path[:] = path
    raise AssertionError("main() must leave with an exit code")


def run_apart(*arguments, cwd, env=None, timeout_secs=120):
    """Run it in a process where importing TensorFlow fails: a poisoned package comes first."""
    poison = cwd.parent / "poison"
    (poison / "tensorflow").mkdir(parents=True, exist_ok=True)
    (poison / "tensorflow" / "__init__.py").write_text(
        "raise SystemExit('TensorFlow was imported')\n"
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(poison), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_secs,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
