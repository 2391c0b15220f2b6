"""What the page shows of one run besides its curves, as plain values for JSON. No TensorFlow.

A damaged file is noted and hides nothing else.
"""

from __future__ import annotations

import base64
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainer.config.options.constraints import format_value
from trainer.errors import DamagedError
from trainer.files import read_bytes, read_json
from trainer.runs import process_status, provenance
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.directory import trained_config
from trainer.runs.ledger import CATEGORIES, Ledger, TimeSummary
from trainer.runs.secret_masking import shown
from trainer.runs.status import State, run_status
from trainer.runs.worker_times import format_sizes, staleness_bins

_PICTURES = ("samples.png", "masks.png")
_TEXTS = ("samples.txt",)
_MAX_BYTES = 16 << 20
"""A larger picture or text is not sent."""
_MAX_CLASSES = 100
"""A confusion matrix of more classes is not sent."""
_ENDINGS = {State.DONE, State.STOPPED, State.FAILED, State.PRUNED}
_reading = threading.Lock()
"""Of a ledger: each request has a thread of its own."""


def details(path: Path, place: str | None = None) -> dict[str, Any]:
    """Return what the page shows of a run, which may still be running, or be damaged.

    Args:
        path: its directory.
        place: where it is, if that is not its directory.
    """
    problems: list[str] = []
    attempt: Callable[..., Any] = partial(_attempt, problems)
    state = attempt("its status", lambda: run_status(path).state, State.WAITING)
    for name in ("result.json", "failure.json"):
        if (file := path / name).exists():
            attempt(name, partial(read_json, file), None)
    record = attempt("run.json", lambda: provenance.read(path), {})
    config = attempt("config.yaml", lambda: trained_config(path), {})
    spent = attempt("ledger.jsonl", lambda: _spent(path), None)
    saves = attempt("checkpoints", lambda: committed_steps(path / "checkpoints"), ())
    files = {
        file.name: content
        for file in (path / name for name in _PICTURES + _TEXTS)
        if (content := attempt(file.name, partial(_content, file), None))
    }
    texts = {name: content.decode(errors="replace") for name, content in files.items()}
    parts = {
        "directory": place or str(path),
        "workers": attempt("logs", lambda: list(_workers(path, state)), []),
        "time": spent and _time(spent),
        **_worker_times(spent),
        "marks": attempt("run.json", lambda: list(_marks(record, spent, saves)), []),
        "confusion": attempt("confusion.json", lambda: _confusion(path / "confusion.json"), None),
        "pictures": [
            {"name": name, "data": _url(files[name])} for name in _PICTURES if name in files
        ],
        "texts": [{"name": name, "text": texts[name]} for name in _TEXTS if name in texts],
        "config": {key: format_value(value) for key, value in shown(config).items()},
        **attempt("run.json", lambda: _record(record), _record({})),
    }
    return {**parts, "problems": [*dict.fromkeys(problems)]}


def _attempt(problems: list[str], name: str, make: Callable[[], Any], default: Any) -> Any:
    """Return what `make` returns; if it fails, note why, and return the default."""
    try:
        return make()
    except Exception as error:  # the page is shown whatever a file holds
        problem = f"{name} cannot be read: {type(error).__name__}: {error}"
        problem = str(error) if isinstance(error, DamagedError) else problem
        problems.append(problem.splitlines()[0])
        return default


def _url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def _content(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return read_bytes(path, _MAX_BYTES)
    return None


def _spent(path: Path) -> TimeSummary | None:
    """Return the time spent by category; None: not known."""
    try:
        number = (path / "ledger.jsonl").stat().st_ino
    except FileNotFoundError:
        return None
    with _reading:
        ledger = _ledger(path, number)
        ledger.refresh()
        summary = ledger.summary()
    return summary if summary.wall_secs else None


@functools.lru_cache(20)
def _ledger(path: Path, inode: int) -> Ledger:
    """Return the ledger of a run, of which only what is added is read again."""
    return Ledger(path, writes=False)


def _workers(path: Path, state: State) -> Iterator[dict[str, Any]]:
    """Yield what each process does, with the seconds since it did something."""
    now = time.time()
    hosts = process_status.without_earlier(process_status.read(path), ())
    for name, host in hosts.items():
        age_secs = process_status.age_secs(path, name, now)
        for process in host.processes:
            is_alive = state not in _ENDINGS and host.code is None and not process.end
            yield {
                "name": process.name,
                "host": process.host or host.host,
                "phase": process.phase,
                "step": process.step,
                "quiet_secs": process.quiet_secs + age_secs if is_alive else None,
                "end": process.end or ("" if is_alive else "ended"),
            }


def _time(spent: TimeSummary) -> dict[str, Any]:
    return {
        "wall_secs": spent.wall_secs,
        "useful": spent.goodput,
        "attempts": spent.attempts,
        "secs": {text: spent.secs[key] for key, text in CATEGORIES.items() if spent.secs[key] > 0},
        "sizes": format_sizes(spent.sizes),
    }


def _worker_times(spent: TimeSummary | None) -> dict[str, Any]:
    """Return how each worker spent its time, and how stale its updates were."""
    record = spent.workers if spent else TimeSummary({}, 0).workers
    return {
        "worker_times": [
            {
                "name": name,
                "steps": each.steps,
                "step_secs": each.step_secs,
                "wait_secs": each.wait_secs,
            }
            for name, each in record.times.items()
        ],
        "straggler": record.straggler() or "",
        "staleness": [
            (name, count)
            for name, count in zip(staleness_bins(), record.staleness, strict=False)
            if count
        ],
    }


def _marks(
    record: Mapping[str, Any], spent: TimeSummary | None, saves: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield what has happened at which step."""
    for step in saves:
        yield _mark(step, "save", f"saved at step {step}")
    for step in spent.restarts if spent else ():
        yield _mark(step, "restart", f"restarted from step {step}")
    for entry in record.get("lineage", ()):
        if (step := entry.get("checkpoint")) is not None:
            yield _mark(int(step), "restart", f"another command went on from step {step}")
    for step, size in (spent.sizes if spent else ())[1:]:
        yield _mark(step, "workers", f"{size} workers from step {step}")


def _mark(step: int, kind: str, text: str) -> dict[str, Any]:
    return {"step": step, "kind": kind, "text": text}


def _confusion(path: Path) -> dict[str, Any] | None:
    """Return a confusion matrix: [C, C] counts; rows are labels, columns are predictions."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    matrix = [[float(count) for count in row] for row in content["matrix"]]
    classes = [str(name) for name in content["classes"]]
    if not matrix or {len(classes), *map(len, matrix)} != {len(matrix)}:
        raise ValueError("no square matrix with a name for each class")
    if len(classes) > _MAX_CLASSES:
        return None
    return {"step": int(content["step"]), "classes": classes, "matrix": matrix}


def _record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what run.json says: the commands with what they changed, code, versions, devices."""
    entries = [record, *record.get("lineage", ())] if record else []
    latest = provenance.latest_command(record)
    replicas = record.get("num_replicas")
    return {
        "commands": [provenance.format_command(entry["argv"]) for entry in entries],
        "changes": [_changes(entry) for entry in entries],
        "code": _revision(record.get("git")) if record else "",
        "machine": f"{latest.get('host')}, Python {latest.get('python')}" if record else "",
        "versions": {
            str(name): str(version) for name, version in latest.get("versions", {}).items()
        },
        "devices": ", ".join(record.get("devices") or ()),
        "replicas": int(replicas) if replicas else None,
    }


def _changes(entry: Mapping[str, Any]) -> str:
    changes = ", ".join(
        f"{change['key']}: {format_value(change['before'])} → {format_value(change['now'])}"
        for change in entry.get("changes", ())
    )
    changed = f"; changed {changes}" if changes else ""
    return f"{entry.get('started', '')}{changed}"


def _revision(git: Mapping[str, Any] | None) -> str:
    if not git:
        return "in no git repository"
    dirty = git.get("dirty", bool(git.get("diff")))
    return f"commit {git['sha']}{', with uncommitted changes' if dirty else ''}"
