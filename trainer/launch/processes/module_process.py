"""Modules that import TensorFlow, run by the parent in a process of their own for one answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.cluster import environment
from trainer.errors import CRASHED, DONE, WRONG_INPUT

_LIMIT_SECS = 600.0


@dataclass(frozen=True)
class Answer:
    """What a module has answered.

    Attributes:
        code: its exit code.
        value: the last line of its output, which is JSON; None: there is no output.
        errors: its standard error.
    """

    code: int
    value: Any
    errors: str


def ask_module(words: Sequence[str], text: str = "") -> Answer:
    """Run a module to its end.

    Args:
        words: its name, and its arguments.
        text: its standard input.

    Raises:
        subprocess.TimeoutExpired: it takes more than ten minutes.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", *words],
        env=environment.worker_environment(),
        input=text,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECS,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode not in (DONE, WRONG_INPUT):
        return Answer(done.returncode, None, done.stderr)
    if not lines:  # the user's code has called sys.exit
        problem = f"{words[0]} left with exit code {done.returncode} without an answer\n"
        return Answer(CRASHED, None, done.stderr + problem)
    return Answer(done.returncode, json.loads(lines[-1]), done.stderr)
