"""What the page tells of each run by itself: time, confusion, command, versions, configuration. No TensorFlow."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainer import provenance
from trainer.console import duration
from trainer.ledger import CATEGORIES
from trainer.report.data import Confusion, Run
from trainer.rules import shown

_TIME_COLORS = {
    "step": "#009e73", "input": "#e69f00", "start": "#56b4e9", "compile": "#0072b2", "eval": "#cc79a7", "save": "#8a8a8a",
    "lost": "#d55e00", "restart": "#8c2d04", "end": "#bdbdbd",
}  # fmt: skip
_MOST_CELLS = 30
"""With more classes than these the matrix is a picture without numbers."""


def times(runs: Iterable[Run]) -> str:
    """Shows where the time of each run went: a bar, and the same in words."""
    known = [(run, run.time) for run in runs if run.time]
    seen = [name for name in CATEGORIES if any(time.secs[name] > 0 for _, time in known)]
    if not seen:
        return ""
    legend = "".join(f'<span><span class="chip" style="background:{_TIME_COLORS[name]}"></span>{CATEGORIES[name]}</span>' for name in seen)
    return f'<div class="legend">{legend}</div>{"".join(_time(run.label, time.secs, time.wall_secs) for run, time in known)}'


def _time(label: str, secs: Mapping[str, float], total: float) -> str:
    shares = {name: 100 * value / total for name, value in secs.items() if value > 0}
    bars = "".join(
        f'<span style="width:{share:.3f}%;background:{_TIME_COLORS[name]}" title="{CATEGORIES[name]}, {duration(secs[name])}"></span>'
        for name, share in shares.items()
    )
    words = ", ".join(
        f"{share:.0f} % {CATEGORIES[name]}" for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share >= 0.5
    )
    return (
        f'<div class="time"><div>{html.escape(label)} <span class="soft">{duration(total)}</span></div>'
        f'<div class="bar">{bars}</div><div class="soft small">{words}</div></div>'
    )


def confusions(runs: Sequence[Run]) -> str:
    """Shows how often each class was taken for which, in each run that tells."""
    found = [(run.label, run.confusion) for run in runs if run.confusion]
    if not found:
        return ""
    note = '<p class="soft small">Rows are labels, columns what they were taken for; the darker, the larger its share of the row.</p>'
    pictures = "".join(
        f"<h3>{html.escape(label)}, step {confusion.step:,}</h3>"
        + (_cells(confusion) if len(confusion.classes) <= _MOST_CELLS else _picture(confusion))
        for label, confusion in found
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
    return f'<div class="wide"><table class="confusion"><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _cell(count: float, share: float) -> str:
    strong = ' class="strong"' if share > 0.5 else ""
    text = f"{count:,.10g}" if count else '<span class="same">·</span>'
    return f'<td{strong} style="background:rgba(0,96,160,{share:.3f})">{text}</td>'


def _picture(confusion: Confusion) -> str:
    """Draws the matrix, a square for each pair that occurs."""
    size = len(confusion.classes)
    squares = []
    for y, row in enumerate(confusion.matrix):
        total = sum(row)
        squares += [
            f'<rect x="{x}" y="{y}" width="1" height="1" fill="#0060a0" fill-opacity="{count / total:.3f}"/>'
            for x, count in enumerate(row)
            if total and count
        ]
    return (
        f'<svg class="grid-picture" viewBox="0 0 {size} {size}" role="img" aria-label="confusion of {size} classes">'
        f'<rect class="axis" width="{size}" height="{size}" stroke-width="{size / 400:.3f}"/>{"".join(squares)}</svg>'
    )


def run(found: Run, number: int, *, is_open: bool) -> str:
    """Shows what is known of one run."""
    parts: list[tuple[str, Callable[[], str]]] = [
        ("run.json", lambda: _facts(found)),
        ("configuration", lambda: _configuration(found.config)),
    ]
    shown_parts = [_safely(what, make) for what, make in parts]
    problems = "".join(f'<p class="failed small">{html.escape(line)}</p>' for line in found.problems)
    crash = f"<details><summary>crash.txt</summary><pre>{html.escape(found.crash)}</pre></details>" if found.crash else ""
    return (
        f'<details class="run" id="run-{number}"{" open" if is_open else ""}><summary><strong>{html.escape(found.label)}</strong> '
        f'<span class="state {found.outcome.state}">{found.outcome.state}</span></summary>{problems}{"".join(shown_parts)}{crash}</details>'
    )


def _safely(what: str, make: Callable[[], str]) -> str:
    """Makes a part; of a file that is no longer as we wrote it, it says so."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f'<p class="failed small">{what} is not as it was written: {html.escape(f"{type(error).__name__}: {error}")}</p>'


def _facts(found: Run) -> str:
    record = found.record
    rows = [("directory", f"<code>{html.escape(str(found.path))}</code>")]
    if record:
        latest = provenance.latest(record)
        entries = [record, *record.get("lineage", ())]
        rows += [("first command" if number == 0 else "continued by", _command(entry)) for number, entry in enumerate(entries)]
        rows.append(("code", _code(record.get("git"))))
        rows.append(("machine", html.escape(f"{latest.get('host')}, Python {latest.get('python')}")))
        rows.append(("versions", html.escape(", ".join(f"{name} {version}" for name, version in latest.get("versions", {}).items()))))
        rows.append(("devices", html.escape(", ".join(record.get("devices") or ["not known"]))))
        if record.get("num_replicas"):
            rows.append(("replicas", str(int(record["num_replicas"]))))
    if found.outcome.metrics:
        rows.append(("test metrics", html.escape(", ".join(f"{name} {value:.6g}" for name, value in found.outcome.metrics.items()))))
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{text}</dd>' for name, text in rows)}</dl>"


def _command(entry: Mapping[str, Any]) -> str:
    changes = ", ".join(f"{change['key']}: {shown(change['before'])} → {shown(change['now'])}" for change in entry.get("changes", ()))
    changed = f"; changed {changes}" if changes else ""
    when = html.escape(f"{entry.get('started', '')}{changed}")
    return f'<code>{html.escape(provenance.command_line(entry["argv"]))}</code><div class="soft small">{when}</div>'


def _code(git: Mapping[str, Any] | None) -> str:
    if not git:
        return "in no git repository"
    dirty = git.get("dirty", bool(git.get("diff")))
    return f"commit <code>{html.escape(str(git['sha']))}</code>{', with uncommitted changes' if dirty else ''}"


def _configuration(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    rows = "".join(
        f'<tr><td class="key"><code>{html.escape(key)}</code></td><td><code>{html.escape(shown(value))}</code></td></tr>'
        for key, value in config.items()
    )
    return f'<details><summary>Configuration</summary><div class="wide"><table>{rows}</table></div></details>'
