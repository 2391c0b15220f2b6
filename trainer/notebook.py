"""Runs the command from Python, such as a cell of a notebook, and returns the run as an object.

It is the ordinary command in its own process: same options, same run directory, same lines.
No TensorFlow.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import trainer
from trainer.cli.command_table import COMMANDS
from trainer.cluster import environment
from trainer.cluster.signals import forward_to
from trainer.errors import CRASHED, DONE, WRONG_INPUT, ConfigError
from trainer.optional_packages import pip_install
from trainer.runs.recorded_metrics import Points, epoch_metrics, read_curves
from trainer.runs.status import RunStatus, run_status

_DIRECTORY = re.compile(r"(?:Run directory: |Predictions with step \d+ of )(.+?)(?:: .*)?")
"""The line in which a command names the directory of its run; the last that it prints."""


class RunError(RuntimeError):
    """A command failed.

    Attributes:
        exit_code: 1 crashed, 2 wrong configuration or input.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the message, without the calls in here."""
        return [f"RunError: {self}"]


@dataclass(frozen=True)
class Run:
    """A run, as a command has left it.

    Attributes:
        exit_code: 0 done; 130 or 143 stopped by an interrupt or SIGTERM, after saving.
    """

    directory: Path
    exit_code: int

    @cached_property
    def status(self) -> RunStatus:
        """State, step, and newest metrics of the evaluations."""
        return run_status(self.directory)

    @property
    def step(self) -> int:
        """Number of updates in the newest checkpoint, or in the result."""
        return self.status.step

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest metrics of the evaluations by name; `loss` among them."""
        return self.status.metrics

    @property
    def history(self) -> Mapping[str, Sequence[float]]:
        """The metrics of each epoch by name, as those of `model.fit(...).history`.

        Those of the split that is validated on start with `val_`.
        """
        return epoch_metrics(self.directory)

    @cached_property
    def curves(self) -> Mapping[tuple[str, str], Points]:
        """Pairs of step and value by split and metric: `curves["train", "loss"]`."""
        return read_curves(self.directory)


def run(
    *overrides: str, config_dir: str | Path | None = None, import_from: Sequence[str] = ()
) -> Run:
    """Run a command line to its end, and print what it prints.

    An interrupt (Ctrl-C, the stop button of a notebook) saves and stops, and the run is returned;
    a second one stops immediately, without saving.

    Args:
        import_from: folders in which it finds modules, in addition to the working directory.

    Raises:
        ConfigError: an argument is no override.
        RunError: the command failed, or was about no single run, as with `mode=plan`.
        KeyboardInterrupt: it was interrupted twice.
    """
    for word in overrides:
        if word.startswith("-") or word in COMMANDS:
            raise ConfigError(
                f"run('{word}') must be an override such as 'model=cnn'; commands and flags are "
                f"for the command line: !python train.py {word}"
            )
    flags = [] if config_dir is None else ["--config-dir", str(config_dir)]
    reading, writing = os.pipe()  # closed when this process ends, in any way
    process = subprocess.Popen(
        [*_program(), *overrides, *flags],
        stdin=subprocess.DEVNULL,  # not attended: an interrupt may reach it twice
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(reading,),
        env=environment.of_command(import_from, reading),
    )
    os.close(reading)
    try:
        lines = _print_lines(process)
    finally:
        os.close(writing)
        if process.poll() is None:
            process.kill()  # its processes end with it
            process.wait()
    return _result(lines, process.returncode)


def _program() -> list[str]:
    checkout = Path(trainer.__file__).resolve().parents[1] / "train.py"
    if checkout.is_file():
        is_here = checkout.parent == Path.cwd()  # then the commands that it prints are short
        return [sys.executable, checkout.name if is_here else str(checkout)]
    installed = Path(sysconfig.get_path("scripts")) / "steadfast"
    if not installed.is_file():
        hint = pip_install("steadfast-trainer")
        raise RunError(f"{installed} must exist; {hint}", WRONG_INPUT)
    return [sys.executable, str(installed)]


def _print_lines(process: subprocess.Popen[bytes]) -> list[str]:
    """Print the lines of a process until it has ended, forward interrupts, and return them."""
    interrupts = []

    def interrupt(number: int) -> None:
        interrupts.append(number)
        process.send_signal(number if len(interrupts) == 1 else signal.SIGKILL)

    # Only the main thread may handle signals; a notebook's cells are run by it.
    is_main = threading.current_thread() is threading.main_thread()
    lines = []
    assert process.stdout is not None
    with forward_to(interrupt, [signal.SIGINT]) if is_main else nullcontext(), process.stdout:
        for data in process.stdout:
            line = data.decode(errors="replace").removesuffix("\n")
            print(line, flush=True)
            lines.append(line)
        process.wait()
    if len(interrupts) > 1:
        raise KeyboardInterrupt
    return lines


def _result(lines: list[str], exit_code: int) -> Run:
    """Return the run that a command has named in its lines."""
    if exit_code in (CRASHED, WRONG_INPUT) or exit_code < 0:
        problems = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise RunError("\n".join(problems) or f"exit code {exit_code}; see above", exit_code)
    named = [match[1] for line in lines if (match := _DIRECTORY.fullmatch(line))]
    if not named:
        state = "has ended" if exit_code == DONE else "was stopped"
        raise RunError(f"the command {state} without a run; see above", exit_code)
    return Run(Path(named[-1]), exit_code)
