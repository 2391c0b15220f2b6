"""What the page's list takes of runs, as plain values for JSON. No TensorFlow.

`templates/` has the scripts that read it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.files import is_locked
from trainer.runs import directory
from trainer.runs.run_summary import RunSummary, differences, summarize


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
    return {
        "id": key,
        "name": Path(key).name,
        **run.plain(differs),
        "mode": run.directions.mode(run.metric),
        "value": run.metrics.get(run.metric),
    }
