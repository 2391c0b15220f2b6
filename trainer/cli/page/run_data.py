"""What the page shows of runs, as plain values for JSON: the list, details, curves.

`templates/` has the scripts that read it. No TensorFlow.
"""

from __future__ import annotations

import base64
import functools
import math
import os
import re
import threading
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter, lt
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from trainer.config.options.constraints import format_value
from trainer.errors import DamagedError
from trainer.files import MAX_LINE_BYTES, is_locked, read_bytes, read_json, regular_file
from trainer.runs import directory, identity, process_status, provenance
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.directory import trained_config
from trainer.runs.ledger import CATEGORIES, Ledger, TimeSummary, format_sizes
from trainer.runs.recorded_metrics import FILES, NO_METRIC, parse_line
from trainer.runs.run_summary import RunSummary, differences, labels, summarize
from trainer.runs.secret_masking import shown
from trainer.runs.status import State, run_status


class Summaries:
    """The runs of a folder in a few numbers each; only what has changed is read again.

    Args:
        listing: returns the directory of each run that is there now, by the id that the page has
            it by.
        searches: returns what the page shows of searches, one after another.
    """

    def __init__(
        self,
        folder: str,
        listing: Callable[[], Mapping[str, Path]],
        searches: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        self.folder = folder
        self.listing = listing
        self._searches = searches
        self._runs: dict[str, tuple[object, RunSummary]] = {}
        self._configs: list[Mapping[str, Any]] = []
        self._differences: list[dict[str, str]] = []
        self._labels: list[str] = []
        self._lock = threading.Lock()  # each request has its own thread

    def payload(self) -> dict[str, Any]:
        """Return what `/api/runs` answers."""
        with self._lock:
            self._runs = {key: self._summary(key, path) for key, path in self.listing().items()}
            configs = [summary.config for _, summary in self._runs.values()]
            if configs != self._configs:
                self._configs, self._differences = configs, differences(configs)
                self._labels = labels(self._differences)
            runs = [
                {
                    "id": key,
                    "name": Path(key).name,
                    **run.plain(differs, " ".join(filter(None, [run.config.get("name"), label]))),
                    "modes": {
                        name: mode for name in run.metrics if (mode := run.directions.mode(name))
                    },
                    "value": run.metrics.get(run.metric),
                }
                for (key, (_, run)), differs, label in zip(
                    self._runs.items(), self._differences, self._labels, strict=True
                )
            ]
            searches = list(self._searches())
            return {"folder": self.folder, "now": time.time(), "runs": runs, "searches": searches}

    def _summary(self, key: str, path: Path) -> tuple[object, RunSummary]:
        signature = _signature(path)
        earlier = self._runs.get(key)
        is_same = earlier is not None and earlier[0] == signature
        return earlier if earlier and is_same else (signature, summarize(path))


def _signature(path: Path) -> object:
    """Return what changes with a run: time and size of its files, and whether it is in use."""
    files = []
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                stat = entry.stat()
                files.append((entry.name, stat.st_mtime_ns, stat.st_size))
    return is_locked(directory.lock_file(path)), sorted(files)


_PICTURES = ("samples.png", "masks.png")
_TEXTS = ("samples.txt",)
_MAX_BYTES = 16 << 20
"""A larger picture or text is not sent."""
_LOG_BYTES = 1 << 17
_MAX_CLASSES = 100
"""A confusion matrix of more classes is not sent."""
_ENDINGS = {State.DONE, State.STOPPED, State.FAILED, State.PRUNED}
_reading = threading.Lock()
"""Of a ledger: each request has its own thread."""


def details(path: Path, place: str | None = None) -> dict[str, Any]:
    """Return what the page shows of a run, at `place` or `path`, which may run or be damaged."""
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
    shown_config = {key: format_value(value) for key, value in shown(config).items()}
    differing = attempt("config.yaml", lambda: identity.differing(config), {})
    changed = [
        key for key in differing if not key.endswith("._target_") and not key.startswith("choices.")
    ]
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
        "changed": {key: text for key, text in shown_config.items() if key in changed},
        "config": {key: text for key, text in shown_config.items() if key not in changed},
        **attempt("run.json", lambda: _record(record), _record({})),
    }
    return {**parts, "problems": [*dict.fromkeys(problems)]}


def _attempt(problems: list[str], name: str, make: Callable[[], Any], default: Any) -> Any:
    """Return what `make` returns; if it fails, note why, and return the default."""
    try:
        return make()
    except Exception as error:  # the page is shown in spite of any file
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
    now = time.time()
    hosts = process_status.without_earlier(process_status.read(path))
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


def read_log(path: Path, process: str) -> dict[str, str]:
    """Return the end of the log of a process; empty without a log."""
    try:
        with open(
            process_status.log_of(path, Path(process).name), "rb", opener=regular_file
        ) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
            return {"text": log.read(_LOG_BYTES).decode(errors="replace")}
    except FileNotFoundError:
        return {"text": ""}


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
    }


def _marks(
    record: Mapping[str, Any], spent: TimeSummary | None, saves: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for step in saves:
        yield _mark(step, "save", f"saved at step {step}")
    for step in spent.restarts if spent else ():
        yield _mark(step, "restart", f"restarted from step {step}")
    for entry in record.get("lineage", ()):
        if (step := entry.get("checkpoint")) is not None:
            yield _mark(int(step), "restart", f"another command continued from step {step}")
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
    """Return the content of run.json: commands and their changes, code, versions, devices."""
    entries = [record, *record.get("lineage", ())] if record else []
    latest = provenance.latest_command(record)
    replicas = record.get("num_replicas")
    return {
        "commands": [provenance.entry_command(entry) for entry in entries],
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


MOST_POINTS = 2000
"""About so many points of a curve are sent."""

_BUFFERED = 8
"""A curve is thinned when it has so many times the points that are sent."""
_CHECKED_BYTES = 64
_POSITION = re.compile(r"(\d{1,15})-(\d{1,10})_(\d{1,15})-(\d{1,10})")
_DIGITS = 6

_STEP, _VALUE = itemgetter(0), itemgetter(1)

_Point: TypeAlias = tuple[int, float]
"""Step and value."""


@dataclass
class _Reading:
    """What one reading gathers.

    Attributes:
        num_lines: how many lines there were since all curves were thinned.
    """

    most: int
    problems: list[str] = field(default_factory=list)
    curves: dict[str, dict[str, list[_Point]]] = field(default_factory=dict)
    num_lines: int = 0


def read_series(path: Path, position: str = "0", most: int = MOST_POINTS) -> dict[str, Any]:
    """Return the points of all curves after a position, as the page takes them.

    Args:
        position: the `offset` of the last answer; `0`: the beginning.
        most: about how many points of a curve are returned; of more, the smallest and the largest
            in each of equal spans of steps.

    Returns:
        `offset`: the position after them; `reset`: whether the files are not those of `position`
        any more, so that the points are all there are; `points`: `step` and `value` of each curve
        by `<split>/<metric>`, ascending by step; `problems`: what cannot be read.
    """
    begins = _parse(position)
    reading = _Reading(most)
    with ExitStack() as stack:
        files = [_open(path / name, stack, reading.problems) for name in FILES]
        is_same = all(map(_is_at, files, begins))
        offsets = [offset if is_same else 0 for offset, _ in begins]
        ends = [*map(partial(_read_file, reading), FILES, files, offsets)]
        marks = [f"{end}-{_checksum(file, end)}" for file, end in zip(files, ends, strict=True)]
    return {
        "offset": "_".join(marks),
        "reset": not is_same,
        "points": {
            f"{split}/{name}": _columns(_settled(points, most))
            for split, curves in sorted(reading.curves.items())
            for name, points in sorted(curves.items())
        },
        "problems": reading.problems,
    }


def thin(points: Sequence[_Point], most: int) -> Sequence[_Point]:
    """Return about `most` of many points: first, last, smallest and largest of equal spans.

    Args:
        points: ascending by step; a value that is not finite interrupts the curve, and one of a
            span is kept.
    """
    if len(points) <= most:
        return points
    steps = list(map(_STEP, points))
    num_spans = max(1, (most - 2) // 2)
    kept = [points[0]]
    begin = 1
    for number in range(1, num_spans + 1):
        edge = steps[0] + number * (steps[-1] - steps[0]) / num_spans
        end = bisect_left(steps, edge, begin)
        if end > begin:
            kept += _extremes(points[begin:end])
        begin = max(begin, end)
    return [*kept, *_extremes(points[begin:-1]), points[-1]]


def _extremes(span: Sequence[_Point]) -> list[_Point]:
    """Return the smallest and the largest point of a span, and one that is not finite."""
    broken: list[_Point] = []
    if not math.isfinite(sum(map(_VALUE, span))):  # the usual case is quick
        broken = [point for point in span if not math.isfinite(point[1])][:1]
        span = [point for point in span if math.isfinite(point[1])]
    ends = [min(span, key=_VALUE), max(span, key=_VALUE)] if span else []
    return sorted({*broken, *ends}, key=_STEP)


def _parse(position: str) -> list[tuple[int, int]]:
    """Return offset and checksum for each file; what is no position is the start."""
    match = _POSITION.fullmatch(position)
    numbers = [*map(int, match.groups())] if match else [0, 0, 0, 0]
    return [(numbers[0], numbers[1]), (numbers[2], numbers[3])]


def _open(path: Path, stack: ExitStack, problems: list[str]) -> BinaryIO | None:
    try:
        return stack.enter_context(open(path, "rb", opener=regular_file))
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def _is_at(file: BinaryIO | None, begin: tuple[int, int]) -> bool:
    return begin[0] == 0 or (file is not None and _checksum(file, begin[0]) == begin[1])


def _checksum(file: BinaryIO | None, offset: int) -> int:
    """Return the checksum of the bytes before an offset; -1: there are not so many."""
    if file is None or offset == 0:
        return 0
    if offset > os.fstat(file.fileno()).st_size:
        return -1
    begin = max(0, offset - _CHECKED_BYTES)
    file.seek(begin)
    return zlib.crc32(file.read(offset - begin))


def _read_file(reading: _Reading, name: str, file: BinaryIO | None, offset: int) -> int:
    """Add the whole lines after an offset to a reading; return the offset after them."""
    if file is None:
        return 0
    num_damaged = 0
    file.seek(offset)
    for text in _whole_lines(file):
        offset += len(text)
        if line := parse_line(text):
            _add_line(line, reading)
        elif text.strip():
            num_damaged += 1
    if num_damaged:
        lines = "1 line" if num_damaged == 1 else f"{num_damaged} lines"
        reading.problems.append(f"{name}: {lines} cannot be read")
    return offset


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without the last one if it is not complete; parts of a huge one."""
    while text := file.readline(MAX_LINE_BYTES):
        if not text.endswith(b"\n") and len(text) < MAX_LINE_BYTES:
            return
        yield text


def _add_line(line: dict[str, Any], reading: _Reading) -> None:
    step, split = line.pop("step"), line.pop("split")
    curves = reading.curves.setdefault(split, {})
    for key, value in line.items():
        if value is not None:
            if key in curves:
                curves[key].append((step, value))
            elif key not in NO_METRIC:
                curves[key] = [(step, value)]
    reading.num_lines += 1
    if reading.num_lines > _BUFFERED * reading.most:
        reading.num_lines = 0
        for split_curves in reading.curves.values():
            for key, points in split_curves.items():
                split_curves[key] = _settled(points, reading.most)


def _settled(points: Sequence[_Point], most: int) -> list[_Point]:
    """Return points in the order of steps, thinned; of a step the last one counts."""
    steps = list(map(_STEP, points))
    if not all(map(lt, steps, steps[1:])):
        points = sorted({point[0]: point for point in points}.values(), key=_STEP)
    return list(thin(points, most))


def _columns(points: Sequence[_Point]) -> dict[str, list[Any]]:
    return {
        "step": [step for step, _ in points],
        "value": [
            float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for _, value in points
        ],
    }
