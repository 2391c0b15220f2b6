"""The page's sections about single runs: time, workers, confusion, command, configuration.

No TensorFlow.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from trainer.cli.report.markup import bar, code, fill, legend, table
from trainer.cli.report.run_data import Confusion, Run
from trainer.config.options.constraints import format_value
from trainer.runs import provenance
from trainer.runs.ledger import CATEGORIES, TimeSummary, format_sizes
from trainer.runs.worker_times import WorkerRecord, WorkerTime, staleness_bins
from trainer.text import format_duration

_TIME_COLORS = {
    "step": "#009e73", "input": "#e69f00", "start": "#56b4e9", "compile": "#0072b2",
    "eval": "#cc79a7", "save": "#8a8a8a", "lost": "#d55e00", "restart": "#8c2d04", "end": "#bdbdbd",
}  # fmt: skip
_STEPS, _WAITING = _TIME_COLORS["step"], _TIME_COLORS["input"]
_MAX_CELLS = 30
"""A matrix of more classes is not shown."""


def times(runs: Iterable[Run]) -> str:
    """Return the time of each run by category, as a bar and in words."""
    timed = [(run, run.time) for run in runs if run.time]
    names = [name for name in CATEGORIES if any(time.secs[name] > 0 for _, time in timed)]
    if not names:
        return ""
    entries = legend((_TIME_COLORS[name], CATEGORIES[name]) for name in names)
    bars = "".join(_time(run.label, time) for run, time in timed)
    return f'<div class="legend">{entries}</div>{bars}'


def _time(label: str, time: TimeSummary) -> str:
    shares = {name: 100 * value / time.wall_secs for name, value in time.secs.items() if value > 0}
    words = ", ".join(
        f"{share:.0f} % {CATEGORIES[name]}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= 0.5
    )
    if sizes := format_sizes(time.sizes):
        words += f"; workers: {sizes}"
    parts = [
        (share, _TIME_COLORS[name], f"{CATEGORIES[name]}, {format_duration(time.secs[name])}")
        for name, share in shares.items()
    ]
    duration = format_duration(time.wall_secs)
    return fill("time", label=escape(label), duration=duration, bar=bar(parts), words=words)


def workers(runs: Iterable[Run]) -> str:
    """Return how each worker of each run spent its time, and the staleness of its updates."""
    parts = [
        _workers_of(run.label, run.time.workers)
        for run in runs
        if run.time and run.time.workers.times
    ]
    return fill("workers", runs="".join(parts)) if parts else ""


def _workers_of(label: str, record: WorkerRecord) -> str:
    line = record.straggler()
    straggler = f"<p>{escape(line)}.</p>" if line else ""
    numbers = ("steps", "seconds of steps", "of waiting")
    head = [
        "<th>worker</th>",
        *(f'<th class="number">{name}</th>' for name in numbers),
        "<th></th>",
    ]
    rows = (_worker_cells(name, time) for name, time in record.times.items())
    return f"<h3>{escape(label)}</h3>{straggler}{table(head, rows)}{staleness(record.staleness)}"


def _worker_cells(name: str, time: WorkerTime) -> list[str]:
    share = 100 * time.wait_secs / time.secs if time.secs else 0.0
    numbers = (f"{time.steps:,}", f"{time.step_secs:.2f}", f"{time.wait_secs:.2f}")
    picture = bar([(100 - share, _STEPS, "steps"), (share, _WAITING, "waiting")])
    return [
        f"<td>{escape(name)}</td>",
        *(f'<td class="number">{text}</td>' for text in numbers),
        f'<td style="min-width:12rem">{picture}</td>',
    ]


def staleness(counts: Sequence[int]) -> str:
    """Return a histogram over `STALENESS_EDGES`, or an empty string without any update."""
    if not any(counts):
        return ""
    used = max(number for number, count in enumerate(counts) if count) + 1
    total, most = sum(counts), max(counts)
    rows = "".join(
        f"<span>{name}</span>{bar([(100 * count / most, _STEPS, name)])}"
        f'<span class="soft">{100 * count / total:.1f} %</span>'
        for name, count in zip(staleness_bins()[:used], counts, strict=False)
    )
    return f'<p class="soft small">Staleness of its updates</p><div class="bins">{rows}</div>'


def confusions(runs: Sequence[Run]) -> str:
    """Return the confusion matrix of each run that has one."""
    matrices = "".join(
        f"<h3>{escape(run.label)}, step {run.confusion.step:,}</h3>{_matrix(run.confusion)}"
        for run in runs
        if run.confusion
    )
    return fill("confusions", matrices=matrices) if matrices else ""


def _matrix(confusion: Confusion) -> str:
    """Return a matrix as a table, if it is not too large."""
    size = len(confusion.classes)
    totals = [sum(row) or 1.0 for row in confusion.matrix]  # a row of zeros has shares of zero
    shares = [
        [count / total for count in row]
        for row, total in zip(confusion.matrix, totals, strict=True)
    ]
    if size > _MAX_CELLS:
        return f'<p class="soft">It has {size} classes: too many to show here.</p>'
    names = [f"<th>{escape(name)}</th>" for name in confusion.classes]
    rows = [
        [name, *map(_count_cell, row, row_shares)]
        for name, row, row_shares in zip(names, confusion.matrix, shares, strict=True)
    ]
    return table(["<th></th>", *names], rows, "confusion")


def _count_cell(count: float, share: float) -> str:
    strong = ' class="strong"' if share > 0.5 else ""
    text = f"{count:,.10g}" if count else '<span class="same">·</span>'
    return f'<td{strong} style="background:rgba(0,96,160,{share:.3f})">{text}</td>'


def samples(runs: Sequence[Run]) -> str:
    """Return what each run that generates examples has generated last."""
    return "".join(
        f"<h3>{escape(run.label)}</h3>"
        f'<img class="samples" alt="generated examples of {escape(run.label)}" '
        f'src="data:image/png;base64,{base64.b64encode(run.samples).decode()}">'
        for run in runs
        if run.samples
    )


def run_details(run: Run, number: int, *, is_open: bool) -> str:
    """Return what is known of a run: its record, its configuration, its crash."""
    content = [f'<p class="failed small">{escape(line)}</p>' for line in run.problems]
    content.append(_if_readable("run.json", lambda: _facts(run)))
    content.append(_if_readable("configuration", lambda: _configuration(run.config)))
    if run.crash:
        crash = f"<pre>{escape(run.crash)}</pre>"
        content.append(fill("folded", title="crash.txt", content=crash))
    return fill(
        "run",
        number=number,
        open=" open" if is_open else "",
        label=escape(run.label),
        state=run.outcome.state,
        content="".join(content),
    )


def _if_readable(name: str, make: Callable[[], str]) -> str:
    """Return a part of the page, or a note if its file has been changed since we wrote it."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        problem = escape(f"{type(error).__name__}: {error}")
        return f'<p class="failed small">{name} is not as it was written: {problem}</p>'


def _facts(run: Run) -> str:
    """Return a list of what run.json records, and of the test metrics."""
    rows = [("directory", code(run.place))]
    if run.record:
        rows += _record_rows(run.record)
    if run.outcome.metrics:
        metrics = (f"{name} {value:.6g}" for name, value in run.outcome.metrics.items())
        rows.append(("test metrics", escape(", ".join(metrics))))
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{text}</dd>' for name, text in rows)}</dl>"


def _record_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    latest = provenance.latest_command(record)
    for number, entry in enumerate([record, *record.get("lineage", ())]):
        yield "first command" if number == 0 else "continued by", _command(entry)
    yield "code", _revision(record.get("git"))
    yield "machine", escape(f"{latest.get('host')}, Python {latest.get('python')}")
    versions = (f"{name} {version}" for name, version in latest.get("versions", {}).items())
    yield "versions", escape(", ".join(versions))
    yield "devices", escape(", ".join(record.get("devices") or ["not known"]))
    if record.get("num_replicas"):
        yield "replicas", str(int(record["num_replicas"]))


def _command(entry: Mapping[str, Any]) -> str:
    changes = ", ".join(
        f"{change['key']}: {format_value(change['before'])} → {format_value(change['now'])}"
        for change in entry.get("changes", ())
    )
    changed = f"; changed {changes}" if changes else ""
    when = escape(f"{entry.get('started', '')}{changed}")
    command = code(provenance.format_command(entry["argv"]))
    return f'{command}<div class="soft small">{when}</div>'


def _revision(git: Mapping[str, Any] | None) -> str:
    if not git:
        return "in no git repository"
    dirty = git.get("dirty", bool(git.get("diff")))
    return f"commit {code(git['sha'])}{', with uncommitted changes' if dirty else ''}"


def _configuration(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    rows = (
        [f'<td class="key">{code(key)}</td>', f"<td>{code(format_value(value))}</td>"]
        for key, value in config.items()
    )
    return fill("folded", title="Configuration", content=table((), rows))
