"""The page's sections about single runs: time, confusion, command, versions, configuration.

No TensorFlow.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainer.cli.report.run_data import Confusion, Run
from trainer.config.options.constraints import format_value
from trainer.runs import provenance
from trainer.runs.ledger import TimeSummary, format_sizes
from trainer.runs.time_tally import CATEGORIES
from trainer.text import format_duration

_TIME_COLORS = {
    "step": "#009e73", "input": "#e69f00", "start": "#56b4e9", "compile": "#0072b2",
    "eval": "#cc79a7", "save": "#8a8a8a", "lost": "#d55e00", "restart": "#8c2d04", "end": "#bdbdbd",
}  # fmt: skip
_MAX_CELLS = 30
"""A matrix of more classes is a picture without numbers."""


def times(runs: Iterable[Run]) -> str:
    """Return the time of each run by category, as a bar and in words."""
    timed = [(run, run.time) for run in runs if run.time]
    names = [name for name in CATEGORIES if any(time.secs[name] > 0 for _, time in timed)]
    if not names:
        return ""
    legend = "".join(
        f'<span><span class="chip" style="background:{_TIME_COLORS[name]}"></span>'
        f"{CATEGORIES[name]}</span>"
        for name in names
    )
    bars = "".join(_time(run.label, time) for run, time in timed)
    return f'<div class="legend">{legend}</div>{bars}'


def _time(label: str, time: TimeSummary) -> str:
    secs, total = time.secs, time.wall_secs
    shares = {name: 100 * value / total for name, value in secs.items() if value > 0}
    bars = "".join(
        f'<span style="width:{share:.3f}%;background:{_TIME_COLORS[name]}" '
        f'title="{CATEGORIES[name]}, {format_duration(secs[name])}"></span>'
        for name, share in shares.items()
    )
    words = ", ".join(
        f"{share:.0f} % {CATEGORIES[name]}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= 0.5
    )
    if sizes := format_sizes(time.sizes):
        words += f"; workers: {sizes}"
    return (
        f'<div class="time"><div>{html.escape(label)} '
        f'<span class="soft">{format_duration(total)}</span></div>'
        f'<div class="bar">{bars}</div><div class="soft small">{words}</div></div>'
    )


def confusions(runs: Sequence[Run]) -> str:
    """Return the confusion matrix of each run that has one."""
    matrices = [(run.label, run.confusion) for run in runs if run.confusion]
    if not matrices:
        return ""
    note = (
        '<p class="soft small">Rows are labels, columns predictions; '
        "the darker a cell, the larger its share of the row.</p>"
    )
    pictures = "".join(
        f"<h3>{html.escape(label)}, step {confusion.step:,}</h3>"
        + (_cells(confusion) if len(confusion.classes) <= _MAX_CELLS else _picture(confusion))
        for label, confusion in matrices
    )
    return note + pictures


def _cells(confusion: Confusion) -> str:
    names = [html.escape(name) for name in confusion.classes]
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for name, row in zip(names, confusion.matrix, strict=True):
        total = sum(row)
        cells = "".join(_cell(count, count / total if total else 0.0) for count in row)
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    table = f'<table class="confusion"><tr><th></th>{head}</tr>{"".join(rows)}</table>'
    return f'<div class="wide">{table}</div>'


def _cell(count: float, share: float) -> str:
    strong = ' class="strong"' if share > 0.5 else ""
    text = f"{count:,.10g}" if count else '<span class="same">·</span>'
    return f'<td{strong} style="background:rgba(0,96,160,{share:.3f})">{text}</td>'


def _picture(confusion: Confusion) -> str:
    """Return the matrix as a picture, with a square for each pair that occurs."""
    size = len(confusion.classes)
    squares = []
    for y, row in enumerate(confusion.matrix):
        total = sum(row)
        squares += [
            f'<rect x="{x}" y="{y}" width="1" height="1" fill="#0060a0" '
            f'fill-opacity="{count / total:.3f}"/>'
            for x, count in enumerate(row)
            if total and count
        ]
    return (
        f'<svg class="grid-picture" viewBox="0 0 {size} {size}" role="img" '
        f'aria-label="confusion of {size} classes">'
        f'<rect class="axis" width="{size}" height="{size}" stroke-width="{size / 400:.3f}"/>'
        f"{''.join(squares)}</svg>"
    )


def samples(runs: Sequence[Run]) -> str:
    """Return what each run that generates examples has generated last."""
    return "".join(
        f"<h3>{html.escape(run.label)}</h3>"
        f'<img class="samples" alt="generated examples of {html.escape(run.label)}" '
        f'src="data:image/png;base64,{base64.b64encode(run.samples).decode()}">'
        for run in runs
        if run.samples
    )


def run_details(run: Run, number: int, *, is_open: bool) -> str:
    """Return what is known of a run: its record, its configuration, its crash."""
    record = _if_readable("run.json", lambda: _facts(run))
    configuration = _if_readable("configuration", lambda: _configuration(run.config))
    problems = "".join(f'<p class="failed small">{html.escape(line)}</p>' for line in run.problems)
    crash = ""
    if run.crash:
        text = f"<pre>{html.escape(run.crash)}</pre>"
        crash = f"<details><summary>crash.txt</summary>{text}</details>"
    state = run.outcome.state
    return (
        f'<details class="run" id="run-{number}"{" open" if is_open else ""}>'
        f"<summary><strong>{html.escape(run.label)}</strong> "
        f'<span class="state {state}">{state}</span></summary>'
        f"{problems}{record}{configuration}{crash}</details>"
    )


def _if_readable(name: str, make: Callable[[], str]) -> str:
    """Return a part of the page, or a note if its file has been changed since we wrote it."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        problem = html.escape(f"{type(error).__name__}: {error}")
        return f'<p class="failed small">{name} is not as it was written: {problem}</p>'


def _facts(run: Run) -> str:
    """Return a list of what run.json records, and of the test metrics."""
    rows = [("directory", f"<code>{html.escape(run.place)}</code>")]
    if run.record:
        rows += _record_rows(run.record)
    if run.outcome.metrics:
        metrics = (f"{name} {value:.6g}" for name, value in run.outcome.metrics.items())
        rows.append(("test metrics", html.escape(", ".join(metrics))))
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{text}</dd>' for name, text in rows)}</dl>"


def _record_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    latest = provenance.latest_command(record)
    for number, entry in enumerate([record, *record.get("lineage", ())]):
        yield "first command" if number == 0 else "continued by", _command(entry)
    yield "code", _code(record.get("git"))
    yield "machine", html.escape(f"{latest.get('host')}, Python {latest.get('python')}")
    versions = (f"{name} {version}" for name, version in latest.get("versions", {}).items())
    yield "versions", html.escape(", ".join(versions))
    yield "devices", html.escape(", ".join(record.get("devices") or ["not known"]))
    if record.get("num_replicas"):
        yield "replicas", str(int(record["num_replicas"]))


def _command(entry: Mapping[str, Any]) -> str:
    changes = ", ".join(
        f"{change['key']}: {format_value(change['before'])} → {format_value(change['now'])}"
        for change in entry.get("changes", ())
    )
    changed = f"; changed {changes}" if changes else ""
    when = html.escape(f"{entry.get('started', '')}{changed}")
    command = html.escape(provenance.format_command(entry["argv"]))
    return f'<code>{command}</code><div class="soft small">{when}</div>'


def _code(git: Mapping[str, Any] | None) -> str:
    if not git:
        return "in no git repository"
    dirty = git.get("dirty", bool(git.get("diff")))
    changes = ", with uncommitted changes" if dirty else ""
    return f"commit <code>{html.escape(str(git['sha']))}</code>{changes}"


def _configuration(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    rows = "".join(
        f'<tr><td class="key"><code>{html.escape(key)}</code></td>'
        f"<td><code>{html.escape(format_value(value))}</code></td></tr>"
        for key, value in config.items()
    )
    table = f'<div class="wide"><table>{rows}</table></div>'
    return f"<details><summary>Configuration</summary>{table}</details>"
