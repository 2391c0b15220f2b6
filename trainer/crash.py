"""crash.txt: what is known of a crash, in the run directory until the run goes on. No TensorFlow.

Nothing that is told here is read from the environment: what it may hold is nobody else's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer import provenance
from trainer.files import write_atomically
from trainer.markers import committed

_FILE = "crash.txt"
_LOG_LINES, _METRIC_LINES = 40, 8
_TAIL_BYTES = 1 << 16
_OUT_OF_MEMORY = "Nobody here sent SIGKILL? Then it was likely the system, out of memory: dmesg tells."


@dataclass(frozen=True)
class Failure:
    """How an attempt failed: of the process that was the first cause, not of those that lost it.

    Attributes:
        who: which process.
        how: how it ended, as in "worker-1 was killed by SIGKILL".
        log: its log.
        cause: its error in one line, if it told any.
        text: what it told besides: the user's traceback, or the stacks where it hangs.
        at: when it was known, Unix time.
    """

    who: str
    how: str
    log: Path
    cause: str = ""
    text: str = ""
    at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        return f"{self.who} {self.how}{f': {self.cause}' if self.cause else ''}"


def path_in(run_dir: Path) -> Path:
    """Gives the file of a run, which need not be there."""
    return run_dir / _FILE


def write(run_dir: Path, why: str, failures: Sequence[Failure], command: Sequence[str]) -> None:
    """Writes crash.txt.

    Args:
        run_dir: the run directory, which must be locked.
        why: the first error that the user was told, in one line.
        failures: how each attempt of the command failed; none if it left before any did.
        command: the words that continue the run.

    Raises:
        StorageError: it cannot be written.
    """
    last = failures[-1] if failures else None
    sections: list[tuple[str, Callable[[], list[str]]]] = [
        ("What happened", lambda: _happened(why, last)),
        ("To go on", lambda: [provenance.command_line(command)]),
        ("Attempts of this command", lambda: _attempts(failures)),
        ("What it told", lambda: last.text.splitlines() if last and last.text != last.cause else []),
        (f"The last lines of {last.log if last else ''}", lambda: _tail(last.log, _LOG_LINES) if last else []),
        ("The last metrics", lambda: _metrics(run_dir)),
        ("Code, versions, devices", lambda: _provenance(run_dir)),
    ]
    step = max(committed(run_dir / "checkpoints"), default=None)
    newest = "there is no checkpoint yet" if step is None else f"the newest checkpoint is that of step {step}"
    lines = [f"{run_dir} has crashed, {time.strftime('%Y-%m-%d %H:%M:%S')}; {newest}."]
    for title, told in sections:
        if content := _told(told):
            lines += ["", title, *(f"  {line}" for line in content)]
    write_atomically(path_in(run_dir), "".join(f"{line}\n" for line in lines))


def forget(run_dir: Path) -> None:
    """Removes crash.txt: the run goes on."""
    path_in(run_dir).unlink(missing_ok=True)


def _told(section: Callable[[], list[str]]) -> list[str]:
    """Gives a section; one that cannot be made, from files that a crash has left, says why and hides no other."""
    try:
        return section()
    except Exception as error:
        return [f"not known: {type(error).__name__}: {error}"]


def _happened(why: str, last: Failure | None) -> list[str]:
    lines = [str(last)] if last else []
    if why and (last is None or why not in (last.cause, str(last))):
        lines.append(why)
    return [*lines, _OUT_OF_MEMORY] if last and last.how.endswith("SIGKILL") else lines


def _attempts(failures: Sequence[Failure]) -> list[str]:
    if len(failures) < 2:
        return []
    told = [f"{time.strftime('%H:%M:%S', time.localtime(failure.at))}  {failure}" for failure in failures]
    return [*told, f"restarted {len(failures) - 1} times"]


def _tail(path: Path, count: int) -> list[str]:
    """Gives the last lines of a file, which may be large."""
    if not path.exists():
        return []
    with path.open("rb") as opened:
        opened.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return opened.read().decode(errors="replace").splitlines()[-count:]


def _metrics(run_dir: Path) -> list[str]:
    """Words the last lines of metrics.jsonl: `step 120  train  loss 0.2113`."""
    path, lines = run_dir / "metrics.jsonl", []
    for text in _tail(path, _METRIC_LINES):
        try:
            line = json.loads(text)
            step, split = line.pop("step"), line.pop("split")
            lines.append("  ".join([f"step {step}", f"{split:5}", *(f"{name} {value:.6g}" for name, value in line.items())]))
        except (ValueError, KeyError, TypeError, AttributeError):
            lines.append(text)  # a kill has cut it off
    return lines


def _provenance(run_dir: Path) -> list[str]:
    record = provenance.read(run_dir)
    now, git = provenance.latest(record), provenance.latest(record).get("git")
    versions = [f"python {now.get('python')}", *(f"{name} {version}" for name, version in now.get("versions", {}).items())]
    devices = record.get("devices")
    lines = [
        f"started with: {provenance.command_line(now['argv'])}",
        f"on {now.get('host')}, {now.get('started')}",
        f"versions: {', '.join(versions)}",
        f"devices: {', '.join(devices) if devices else 'not known: it did not come as far'}",
    ]
    if git:
        dirty = git.get("dirty", bool(git.get("diff")))
        lines.append(f"code: commit {git['sha'][:10]}{', with uncommitted changes' if dirty else ''}")
    return lines
