"""The page: what all runs have in common, side by side. No TensorFlow."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence
from typing import Any

from trainer import __version__
from trainer.console import duration
from trainer.outcome import main_metric
from trainer.report import charts, details
from trainer.report.charts import Line
from trainer.report.data import Run, differing
from trainer.report.style import CSS, SCRIPT
from trainer.rules import shown
from trainer.tables import number

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_MOST_METRICS = 6
_LAST = ("learning_rate", "gradient_norm", "examples_per_sec")
"""Curves that come after those of the metrics; what is neither is shown on request."""

_NAMES = {"learning_rate": "learning rate", "gradient_norm": "gradient norm", "examples_per_sec": "examples per second"}
_SAMPLE = '<svg viewBox="0 0 32 12"><path class="{} sample" d="M0 6H32"/></svg>'


def render(runs: Sequence[Run]) -> str:
    """Makes the page.

    Args:
        runs: at least one, in the order in which they are shown.
    """
    colors = charts.colors(len(runs))
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    parts = [
        _header(title, runs),
        _section("Runs" if len(runs) > 1 else "Run", _table(runs, colors)),
        _section("Curves", _curves(runs, colors)),
        _section("What differs in the configuration", _differences(runs, colors)),
        _section("Where the time went", details.times(runs)),
        _section("Confusion", details.confusions(runs)),
        _section(
            "Each run" if len(runs) > 1 else "Details",
            "".join(details.run(run, number, is_open=len(runs) == 1) for number, run in enumerate(runs)),
        ),
        f"<footer>Steadfast {html.escape(__version__)}, {time.strftime('%Y-%m-%d %H:%M')}. This page needs no network.</footer>",
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}: report</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>\n{CSS}</style>\n</head>\n'
        f"<body>\n{''.join(parts)}\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )


def metric_names(runs: Iterable[Run]) -> list[str]:
    """Gives the metrics of the test split, the main one and the loss first, without those of single classes, `recall/<class>`."""
    names = [name for run in runs for split, name in run.curves if split == "test"]
    names += [name for run in runs for name in run.outcome.metrics]
    plain = [name for name in dict.fromkeys(names) if "/" not in name]
    first = main_metric(plain)
    return sorted(plain, key=lambda name: (name != first, name != "loss"))


def _header(title: str, runs: Sequence[Run]) -> str:
    states = [run.outcome.state for run in runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    where = sorted({str(run.path.parent) for run in runs})
    return f'<header><h1>{html.escape(title)}</h1><p class="soft">{counts} · in {html.escape(", ".join(where))}</p></header>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _table(runs: Sequence[Run], colors: Sequence[str]) -> str:
    metrics = metric_names(runs)[:_MOST_METRICS]
    best = main_metric(metrics) if metrics else ""
    heads = ["step", *metrics, *([f"best {best}"] if best else []), "wall time", "goodput", "attempts"]
    head = "".join(f'<th class="number" data-sorts>{html.escape(name.replace("_", " "))}</th>' for name in heads)
    rows = "".join(
        f"<tr>{_row(run, place, color, metrics, best)}</tr>" for place, (run, color) in enumerate(zip(runs, colors, strict=True))
    )
    return (
        '<div class="wide"><table class="runs"><thead><tr><th data-sorts>run</th><th data-sorts>state</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        '<p class="soft small">Metrics are those of the test split, the newest. Goodput is the share of the time that went into steps '
        "which count.</p>"
    )


def _row(run: Run, place: int, color: str, metrics: Sequence[str], best: str) -> str:
    outcome, total = run.outcome, run.record.get("total_steps")
    label = html.escape(run.label)
    why = f'<div class="small failed">{html.escape(outcome.why)}</div>' if outcome.why else ""
    cells = [
        f'<td class="name" data-value="{html.escape(run.label)}">{chip(color)}<a href="#run-{place}">{label}</a>{why}</td>',
        f'<td class="state {outcome.state}" data-value="{outcome.state}">{outcome.state}</td>',
        _number(f"{outcome.step:,}{f' / {total:,}' if isinstance(total, int) and total != outcome.step else ''}", outcome.step),
    ]
    cells += [_number(number(value), value) if (value := outcome.metrics.get(name)) is not None else _number("–") for name in metrics]
    if best:
        found = run.best(best)
        cells.append(_number(f'{number(found[1])} <span class="soft">at {found[0]:,}</span>', found[1]) if found else _number("–"))
    if run.time:
        secs, share = run.time.wall_secs, run.time.goodput
        cells += [_number(duration(secs), secs), _number(f"{100 * share:.0f} %", share), _number(str(run.time.attempts), run.time.attempts)]
    else:
        cells += [_number("–")] * 3
    return "".join(cells)


def _number(text: str, value: float | None = None) -> str:
    return f'<td class="number" data-value="{"" if value is None else value}">{text}</td>'


def chip(color: str) -> str:
    """Gives a small square of a run's colour."""
    return f'<span class="chip" style="background:{color}"></span>'


def _curves(runs: Sequence[Run], colors: Sequence[str]) -> str:
    known = list(dict.fromkeys(name for run in runs for _, name in run.curves))
    metrics = metric_names(runs)
    first = [name for name in ("loss", *metrics) if name in known]
    names = list(dict.fromkeys([*first, *(name for name in _LAST if name in known)]))
    drawn = "".join(_chart(name, runs, colors) for name in names)
    more = "".join(_chart(name, runs, colors) for name in sorted(set(known) - set(names)))
    if not drawn and not more:
        return '<p class="soft">There is no curve yet.</p>'
    rest = f'<details><summary>More curves</summary><div class="charts">{more}</div></details>' if more else ""
    return f'{_legend(runs, colors)}<div class="charts">{drawn}</div>{rest}'


def _legend(runs: Sequence[Run], colors: Sequence[str]) -> str:
    names = "".join(f"<span>{chip(color)}{html.escape(run.label)}</span>" for run, color in zip(runs, colors, strict=True))
    splits = "".join(f"<span>{_SAMPLE.format(kind)}{split}</span>" for kind, split in (("line", "test"), ("faint", "training")))
    return f'<div class="legend">{names}</div><div class="legend soft">{splits}</div>'


def _chart(name: str, runs: Sequence[Run], colors: Sequence[str]) -> str:
    lines = []
    for run, color in zip(runs, colors, strict=True):
        splits = sorted({split for split, other in run.curves if other == name}, key=lambda split: split != "test")
        for split in splits:
            # Where there is nothing to tell it from, a line is no background.
            is_faint = split != "test" and any(("test", name) in other.curves for other in runs)
            lines.append(Line(f"{run.label}, {'training' if split == 'train' else split}", color, run.curves[split, name], is_faint))
    return charts.line_chart(_NAMES.get(name, name.replace("_", " ")), lines)


def _differences(runs: Sequence[Run], colors: Sequence[str]) -> str:
    if len(runs) < 2:
        return ""
    found = differing(runs)
    if not found:
        return '<p class="soft">Nothing.</p>'
    heads = "".join(f"<th>{chip(color)}{html.escape(run.label)}</th>" for run, color in zip(runs, colors, strict=True))
    rows = "".join(f'<tr><td class="key"><code>{html.escape(key)}</code></td>{_values(runs, values)}</tr>' for key, values in found.items())
    return f'<div class="wide"><table><thead><tr><th class="key">key</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _values(runs: Sequence[Run], values: Sequence[Any]) -> str:
    texts = ["–" if value is None else f"<code>{html.escape(shown(value))}</code>" for value in values]
    return "".join(f"<td>{text if run.config else '?'}</td>" for run, text in zip(runs, texts, strict=True))
