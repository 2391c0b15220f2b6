"""The report as one HTML page: the runs side by side, then each in detail. No TensorFlow."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.cli.report import details
from trainer.cli.report.charts import Line, colors_of, line_chart
from trainer.cli.report.document import document, section
from trainer.cli.report.run_data import Run, differing, main_metric
from trainer.cli.report.workers import workers
from trainer.config.options.constraints import format_value
from trainer.text import format_duration
from trainer.text import format_metric as format_number

_MOST_METRICS = 6
_SPLITS = ("validation", "test")
_LAST_CURVES = ("learning_rate", "gradient_norm", "examples_per_sec")
"""Curves after those of the metrics; all others are folded away."""

_NAMES = {
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm",
    "examples_per_sec": "examples per second",
}
_SAMPLE = '<svg viewBox="0 0 32 12"><path class="{} sample" d="M0 6H32"/></svg>'


def render(runs: Sequence[Run]) -> str:
    """Return the page as HTML.

    Args:
        runs: at least one, in the order of the page.
    """
    colors = colors_of(len(runs))
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    single = [
        details.run_details(run, number, is_open=len(runs) == 1) for number, run in enumerate(runs)
    ]
    parts = [
        _header(title, runs),
        section("Runs" if len(runs) > 1 else "Run", _table(runs, colors)),
        section("Curves", _curves(runs, colors)),
        section("What differs in the configuration", _differences(runs, colors)),
        section("Where the time went", details.times(runs)),
        section("Workers", workers(runs)),
        section("Confusion", details.confusions(runs)),
        section("Generated examples", details.samples(runs)),
        section("Each run" if len(runs) > 1 else "Details", "".join(single)),
    ]
    return document(title, *parts)


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Return the metrics of the evaluations, the main one and the loss first.

    Those of single classes, such as `recall/<class>`, are left out.
    """
    names = [name for run in runs for split, name in run.curves if split in _SPLITS]
    names += [name for run in runs for name in run.outcome.metrics]
    plain = [name for name in dict.fromkeys(names) if "/" not in name]
    first = main_metric(runs, plain)
    return sorted(plain, key=lambda name: (name != first, name != "loss"))


def _header(title: str, runs: Sequence[Run]) -> str:
    states = [run.outcome.state for run in runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    folders = ", ".join(sorted({os.path.dirname(run.place) or "." for run in runs}))
    return (
        f"<header><h1>{html.escape(title)}</h1>"
        f'<p class="soft">{counts} · in {html.escape(folders)}</p></header>'
    )


def _table(runs: Sequence[Run], colors: Sequence[str]) -> str:
    metrics = metric_names(runs)[:_MOST_METRICS]
    best = main_metric(runs, metrics) if metrics else ""
    heads = [
        "step",
        *metrics,
        *([f"best {best}"] if best else []),
        "wall time",
        "goodput",
        "attempts",
    ]
    head = "".join(
        f'<th class="number" data-sorts>{html.escape(name.replace("_", " "))}</th>'
        for name in heads
    )
    rows = "".join(
        f"<tr>{_row(run, number, color, metrics, best)}</tr>"
        for number, (run, color) in enumerate(zip(runs, colors, strict=True))
    )
    return (
        '<div class="wide"><table class="runs"><thead><tr>'
        "<th data-sorts>run</th><th data-sorts>state</th>"
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        '<p class="soft small">Metrics are the newest of the evaluations. '
        "Goodput is the share of the time that was spent on steps that count.</p>"
    )


def _row(run: Run, number: int, color: str, metrics: Sequence[str], best: str) -> str:
    outcome = run.outcome
    total = run.record.get("total_steps")
    steps = f"{outcome.step:,}"
    if isinstance(total, int) and total != outcome.step:
        steps += f" / {total:,}"
    label = html.escape(run.label)
    why = f'<div class="small failed">{html.escape(outcome.error)}</div>' if outcome.error else ""
    cells = [
        f'<td class="name" data-value="{label}">{chip(color)}'
        f'<a href="#run-{number}">{label}</a>{why}</td>',
        f'<td class="state {outcome.state}" data-value="{outcome.state}">{outcome.state}</td>',
        _number_cell(steps, outcome.step),
    ]
    cells += [
        _number_cell(_figure(name, value, outcome.test), value)
        if (value := outcome.metrics.get(name)) is not None
        else _number_cell("–")
        for name in metrics
    ]
    if best:
        cells.append(_best_cell(run.best(best)))
    if run.time:
        secs = run.time.wall_secs
        share = run.time.goodput
        cells += [
            _number_cell(format_duration(secs), secs),
            _number_cell(f"{100 * share:.0f} %", share),
            _number_cell(str(run.time.attempts), run.time.attempts),
        ]
    else:
        cells += [_number_cell("–")] * 3
    return "".join(cells)


def _figure(name: str, value: float, test: Mapping[str, float]) -> str:
    text = format_number(value)
    if name in test:
        text += f' <span class="soft">test {format_number(test[name])}</span>'
    return text


def _best_cell(best: tuple[int, float] | None) -> str:
    if best is None:
        return _number_cell("–")
    step, value = best
    text = f'{format_number(value)} <span class="soft">at {step:,}</span>'
    return _number_cell(text, value)


def _number_cell(text: str, value: float | None = None) -> str:
    return f'<td class="number" data-value="{"" if value is None else value}">{text}</td>'


def chip(color: str) -> str:
    """Return a small square in the colour of a run."""
    return f'<span class="chip" style="background:{color}"></span>'


def _curves(runs: Sequence[Run], colors: Sequence[str]) -> str:
    curves = {name for run in runs for _, name in run.curves}
    rates = sorted(name for name in curves if name.startswith("learning_rate/"))
    order = dict.fromkeys(("loss", *metric_names(runs), *_LAST_CURVES, *rates))
    names = [name for name in order if name in curves]
    charts = "".join(_chart(name, runs, colors) for name in names)
    more = "".join(_chart(name, runs, colors) for name in sorted(curves.difference(names)))
    if not charts and not more:
        return '<p class="soft">There is no curve yet.</p>'
    rest = (
        f'<details><summary>More curves</summary><div class="charts">{more}</div></details>'
        if more
        else ""
    )
    return f'{_legend(runs, colors)}<div class="charts">{charts}</div>{rest}'


def _legend(runs: Sequence[Run], colors: Sequence[str]) -> str:
    names = "".join(
        f"<span>{chip(color)}{html.escape(run.label)}</span>"
        for run, color in zip(runs, colors, strict=True)
    )
    splits = "".join(
        f"<span>{_SAMPLE.format(kind)}{split}</span>"
        for kind, split in (("line", "evaluation"), ("faint", "training"))
    )
    return f'<div class="legend">{names}</div><div class="legend soft">{splits}</div>'


def _chart(name: str, runs: Sequence[Run], colors: Sequence[str]) -> str:
    lines = []
    for run, color in zip(runs, colors, strict=True):
        splits = sorted(
            {split for split, other in run.curves if other == name},
            key=lambda split: split not in _SPLITS,
        )
        for split in splits:
            # Training is in the background only if there is a curve of an evaluation.
            is_faint = split not in _SPLITS and any(
                (evaluated, name) in other.curves for other in runs for evaluated in _SPLITS
            )
            lines.append(
                Line(
                    f"{run.label}, {'training' if split == 'train' else split}",
                    color,
                    run.curves[split, name],
                    is_faint,
                )
            )
    return line_chart(_NAMES.get(name, name.replace("_", " ")), lines)


def _differences(runs: Sequence[Run], colors: Sequence[str]) -> str:
    if len(runs) < 2:
        return ""
    differences = differing(runs)
    if not differences:
        return '<p class="soft">Nothing.</p>'
    heads = "".join(
        f"<th>{chip(color)}{html.escape(run.label)}</th>"
        for run, color in zip(runs, colors, strict=True)
    )
    rows = "".join(
        f'<tr><td class="key"><code>{html.escape(key)}</code></td>{_values(runs, values)}</tr>'
        for key, values in differences.items()
    )
    return (
        f'<div class="wide"><table><thead><tr><th class="key">key</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _values(runs: Sequence[Run], values: Sequence[Any]) -> str:
    texts = [
        "–" if value is None else f"<code>{html.escape(format_value(value))}</code>"
        for value in values
    ]
    return "".join(
        f"<td>{text if run.config else '?'}</td>" for run, text in zip(runs, texts, strict=True)
    )
