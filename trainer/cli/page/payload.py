"""What the page takes of runs, as plain values for JSON. No TensorFlow.

`templates/` has the scripts that read it.
"""

from __future__ import annotations

import base64
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.cli.page import run_data
from trainer.cli.page.run_data import Run
from trainer.config.options.constraints import format_value
from trainer.files import is_locked
from trainer.runs import directory, provenance
from trainer.runs.ledger import CATEGORIES, TimeSummary, format_sizes
from trainer.runs.process_status import HostStatus
from trainer.runs.run_summary import RunSummary, differences, label, summarize
from trainer.runs.status import State
from trainer.runs.worker_times import staleness_bins

_MAX_CELLS = 100
"""A confusion matrix of more classes is not sent."""
_ENDINGS = {State.DONE, State.STOPPED, State.FAILED, State.PRUNED}


class Summaries:
    """The runs of a folder in a few numbers each; only what has changed is read again.

    Args:
        folder: how the user names the folder.
        listing: returns the directory of each run that is there now, by the id that the page knows
            it by.
    """

    def __init__(self, folder: str, listing: Callable[[], Mapping[str, Path]]) -> None:
        self.folder = folder
        self.listing = listing
        self._runs: dict[str, tuple[object, RunSummary]] = {}
        self._configs: list[Mapping[str, Any]] = []
        self._differences: list[dict[str, str]] = []
        self._lock = threading.Lock()  # each request has a thread of its own

    def payload(self) -> dict[str, Any]:
        """Return `{"folder", "now", "runs"}`."""
        with self._lock:
            self._runs = {key: self._summary(key, path) for key, path in self.listing().items()}
            summaries = {key: summary for key, (_, summary) in self._runs.items()}
            configs = [summary.config for summary in summaries.values()]
            if configs != self._configs:
                self._configs, self._differences = configs, differences(configs)
            return runs_payload(self.folder, summaries, self._differences)

    def _summary(self, key: str, path: Path) -> tuple[object, RunSummary]:
        signature = _signature(path)
        earlier = self._runs.get(key)
        is_same = earlier is not None and earlier[0] == signature
        return earlier if earlier and is_same else (signature, summarize(path))


def runs_payload(
    folder: str, summaries: Mapping[str, RunSummary], differing: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return what `/api/runs` answers.

    Args:
        folder: how the user names the folder.
        summaries: the runs by id.
        differing: for each run what `run_summary.differences` says of it.
    """
    runs = [
        _run_payload(key, summary, differs)
        for (key, summary), differs in zip(summaries.items(), differing, strict=True)
    ]
    return {"folder": folder, "now": time.time(), "runs": runs}


def details(path: Path, place: str | None = None) -> dict[str, Any]:
    """Return what the page shows of one run besides its curves.

    Args:
        path: its directory, which may be damaged.
        place: where it is, if that is not its directory.
    """
    run = run_data.read(path, place)
    nothing: list[dict[str, Any]] = []
    parts = {
        "workers": run.attempt("logs", lambda: list(_workers(run)), nothing),
        "time": run.time and _time(run.time),
        **_worker_times(run.time),
        "marks": run.attempt("run.json", lambda: list(_marks(run)), nothing),
        "confusion": _confusion(run),
        "pictures": [
            {"name": name, "data": f"data:image/png;base64,{base64.b64encode(content).decode()}"}
            for name, content in run.pictures.items()
        ],
        "texts": [{"name": name, "text": text} for name, text in run.texts.items()],
        "config": {key: format_value(value) for key, value in run.config.items()},
        **run.attempt("run.json", lambda: _record(run.record), _record({})),
        "crash": run.crash,
    }
    return {"directory": run.place, **parts, "problems": [*dict.fromkeys(run.problems)]}


def finite_only(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and nothing infinite: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite_only(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(part) for part in value]
    return value


def _signature(path: Path) -> object:
    """Return what changes with a run: time and size of its files, and whether it is in use."""
    files = []
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                stat = entry.stat()
                files.append((entry.name, stat.st_mtime_ns, stat.st_size))
    return is_locked(directory.lock_file(path)), sorted(files)


def _run_payload(key: str, run: RunSummary, differs: Mapping[str, str]) -> dict[str, Any]:
    best = run.best
    primary = run.directions.primary
    metric = primary if primary in run.metrics or best else "loss"
    return {
        "id": key,
        "name": Path(key).name,
        "label": label(differs),
        "differs": dict(differs),
        "state": run.state,
        "step": run.step,
        "total": run.total,
        "secs": run.secs,
        "eta_secs": run.eta_secs,
        "active": run.active,
        "metric": metric,
        "mode": run.directions.mode(metric),
        "value": run.metrics.get(metric),
        "best": best and best[1],
        "best_step": best and best[0],
        "metrics": dict(run.metrics),
        "test": dict(run.test),
        "why": run.why,
    }


def _workers(run: Run) -> Iterator[dict[str, Any]]:
    is_running = run.outcome.state not in _ENDINGS
    for host, age_secs in run.hosts:
        yield from (
            _worker(host, number, age_secs, is_running) for number in range(len(host.processes))
        )


def _worker(host: HostStatus, number: int, age_secs: float, is_running: bool) -> dict[str, Any]:
    process = host.processes[number]
    is_alive = is_running and host.code is None and not process.end
    return {
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


def _marks(run: Run) -> Iterator[dict[str, Any]]:
    """Yield what has happened at which step."""
    for step in run.saves:
        yield _mark(step, "save", f"saved at step {step}")
    for step in run.time.restarts if run.time else ():
        yield _mark(step, "restart", f"restarted from step {step}")
    for entry in run.record.get("lineage", ()):
        if (step := entry.get("checkpoint")) is not None:
            yield _mark(int(step), "restart", f"another command went on from step {step}")
    for step, size in (run.time.sizes if run.time else ())[1:]:
        yield _mark(step, "workers", f"{size} workers from step {step}")


def _mark(step: int, kind: str, text: str) -> dict[str, Any]:
    return {"step": step, "kind": kind, "text": text}


def _confusion(run: Run) -> dict[str, Any] | None:
    confusion = run.confusion
    if confusion is None or len(confusion.classes) > _MAX_CELLS:
        return None
    return {
        "step": confusion.step,
        "classes": list(confusion.classes),
        "matrix": [list(row) for row in confusion.matrix],
    }


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
