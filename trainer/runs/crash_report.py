"""crash.txt: the report of a crash, in the run directory until the run continues.

It holds nothing of the environment variables, which may contain secrets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer.files import regular_file, write_atomically
from trainer.runs.checkpoint_marker import committed_steps

_FILE = "crash.txt"
_LOG_LINES = 40
_TAIL_BYTES = 1 << 16
_OUT_OF_MEMORY = "If no user sent SIGKILL, the system was probably out of memory: see dmesg."


@dataclass(frozen=True)
class Failure:
    """The failure of an attempt: of the process that failed first, not of those that lost it.

    Attributes:
        process: the name of the process, such as `worker-1`.
        end: how it ended, such as `was killed by SIGKILL`.
        log: its log.
        cause: its error in one line, if it reported one.
        text: what else it reported: the user's traceback, or the stacks at which it hangs.
        time: when it was noticed, Unix time.
    """

    process: str
    end: str
    log: Path
    cause: str = ""
    text: str = ""
    time: float = field(default_factory=time.time)

    def __str__(self) -> str:
        return f"{self.process} {self.end}{f': {self.cause}' if self.cause else ''}"


def report_path(run_dir: Path) -> Path:
    """Return the report's file, which need not exist."""
    return run_dir / _FILE


def write(run_dir: Path, error: str, failures: Sequence[Failure], command: str) -> None:
    """Write crash.txt.

    Args:
        run_dir: the run directory, which must be locked.
        error: the first error that the user was shown, in one line.
        failures: the failure of each attempt of the command; none if it ended before any failed.
        command: the command that continues the run.

    Raises:
        StorageError: it cannot be written.
    """
    step = max(committed_steps(run_dir / "checkpoints"), default=None)
    newest = (
        "there is no checkpoint yet"
        if step is None
        else f"the newest checkpoint is that of step {step}"
    )
    lines = [f"{run_dir} has crashed, {time.strftime('%Y-%m-%d %H:%M:%S')}; {newest}."]
    last = failures[-1] if failures else None
    sections = {
        "What happened": _what_happened(error, last),
        "To continue": [command],
        "Attempts of this command": _attempts(failures),
    }
    if last:
        sections["Traceback"] = last.text.splitlines() if last.text != last.cause else []
        sections[f"The last lines of {last.log}"] = _tail(last.log)
    for title, content in sections.items():
        if content:
            lines += ["", title, *(f"  {line}" for line in content)]
    write_atomically(report_path(run_dir), "".join(f"{line}\n" for line in lines))


def remove(run_dir: Path) -> None:
    """Remove crash.txt: the run continues."""
    report_path(run_dir).unlink(missing_ok=True)


def _what_happened(error: str, last: Failure | None) -> list[str]:
    lines = [str(last)] if last else []
    if error and (last is None or error not in (last.cause, str(last))):
        lines.append(error)
    return [*lines, _OUT_OF_MEMORY] if last and last.end.endswith("SIGKILL") else lines


def _attempts(failures: Sequence[Failure]) -> list[str]:
    if len(failures) < 2:
        return []
    lines = [
        f"{time.strftime('%H:%M:%S', time.localtime(failure.time))}  {failure}"
        for failure in failures
    ]
    return [*lines, f"restarted {len(failures) - 1} times"]


def _tail(log: Path) -> list[str]:
    """Return the last lines of a log, which may be large; none if it cannot be read."""
    try:
        with open(log, "rb", opener=regular_file) as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
