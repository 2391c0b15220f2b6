"""The report as one HTML page: the runs side by side, then each in detail. No TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trainer import __version__
from trainer.cli.report import details
from trainer.cli.report.charts import Line, colors_of, line_chart
from trainer.cli.report.markup import chip, code, fill, legend, number_cell, table, text_of
from trainer.cli.report.run_data import Run, differing, main_metric
from trainer.config.options.constraints import format_value
from trainer.text import format_duration
from trainer.text import format_metric as format_number

_MOST_METRICS = 6
_SPLITS = ("validation", "test")
_NAMES = {
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm",
    "examples_per_sec": "examples per second",
}
"""Curves after those of the metrics, with their titles; all others are folded away."""


def render(runs: Sequence[Run]) -> str:
    """Return the page as HTML.

    Args:
        runs: at least one, in the order of the page.
    """
    colors = colors_of(len(runs))
    is_single = len(runs) == 1
    states = sorted(run.outcome.state for run in runs)
    sections = {
        "Run" if is_single else "Runs": _runs(runs, colors),
        "Curves": _curves(runs, colors),
        "What differs in the configuration": _differences(runs, colors),
        "Where the time went": details.times(runs),
        "Workers": details.workers(runs),
        "Confusion": details.confusions(runs),
        "Generated examples": details.samples(runs),
        "Details" if is_single else "Each run": "".join(
            details.run_details(run, number, is_open=is_single) for number, run in enumerate(runs)
        ),
    }
    return fill(
        "page",
        title=escape(runs[0].label if is_single else f"{len(runs)} runs"),
        counts=", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
        folders=escape(", ".join(sorted({os.path.dirname(run.place) or "." for run in runs}))),
        sections="\n".join(
            fill("section", title=title, content=content)
            for title, content in sections.items()
            if content
        ),
        version=escape(__version__),
        time=time.strftime("%Y-%m-%d %H:%M"),
        style=text_of("page.css"),
        script=text_of("page.js"),
    )


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Return the metrics of the evaluations, the main one and the loss first.

    Those of single classes, such as `recall/<class>`, are left out.
    """
    names = [name for run in runs for split, name in run.curves if split in _SPLITS]
    names += [name for run in runs for name in run.outcome.metrics]
    plain = [name for name in dict.fromkeys(names) if "/" not in name]
    first = main_metric(runs, plain)
    return sorted(plain, key=lambda name: (name != first, name != "loss"))


def _runs(runs: Sequence[Run], colors: Sequence[str]) -> str:
    metrics = metric_names(runs)[:_MOST_METRICS]
    best = main_metric(runs, metrics) if metrics else ""
    names = [
        *("step", *metrics),
        *([f"best {best}"] if best else []),
        *("wall time", "goodput", "attempts"),
    ]
    head = ["<th data-sorts>run</th>", "<th data-sorts>state</th>"]
    head += [
        f'<th class="number" data-sorts>{escape(name.replace("_", " "))}</th>' for name in names
    ]
    rows = [
        [_name_cells(run, number, color), *_figures(run, metrics, best)]
        for number, (run, color) in enumerate(zip(runs, colors, strict=True))
    ]
    return fill("runs", table=table(head, rows, "runs"))


def _name_cells(run: Run, number: int, color: str) -> str:
    """Return the cells of a run's name and state."""
    label, state, error = escape(run.label), run.outcome.state, run.outcome.error
    why = f'<div class="small failed">{escape(error)}</div>' if error else ""
    return (
        f'<td class="name" data-value="{label}">{chip(color)}'
        f'<a href="#run-{number}">{label}</a>{why}</td>'
        f'<td class="state {state}" data-value="{state}">{state}</td>'
    )


def _figures(run: Run, metrics: Sequence[str], best: str) -> list[str]:
    """Return the cells of a run's numbers."""
    outcome = run.outcome
    total = run.record.get("total_steps")
    steps = f"{outcome.step:,}"
    if isinstance(total, int) and total != outcome.step:
        steps += f" / {total:,}"
    cells = [number_cell(steps, outcome.step)]
    cells += [_metric_cell(name, outcome.metrics, outcome.test) for name in metrics]
    if best and (point := run.best(best)):
        step, value = point
        text = f'{format_number(value)} <span class="soft">at {step:,}</span>'
        cells.append(number_cell(text, value))
    elif best:
        cells.append(number_cell("–"))
    if run.time is None:
        return [*cells, *[number_cell("–")] * 3]
    return [
        *cells,
        number_cell(format_duration(run.time.wall_secs), run.time.wall_secs),
        number_cell(f"{100 * run.time.goodput:.0f} %", run.time.goodput),
        number_cell(str(run.time.attempts), run.time.attempts),
    ]


def _metric_cell(name: str, metrics: Mapping[str, float], test: Mapping[str, float]) -> str:
    value = metrics.get(name)
    if value is None:
        return number_cell("–")
    text = format_number(value)
    if name in test:
        text += f' <span class="soft">test {format_number(test[name])}</span>'
    return number_cell(text, value)


def _curves(runs: Sequence[Run], colors: Sequence[str]) -> str:
    curves = {name for run in runs for _, name in run.curves}
    rates = sorted(name for name in curves if name.startswith("learning_rate/"))
    order = dict.fromkeys(("loss", *metric_names(runs), *_NAMES, *rates))
    names = [name for name in order if name in curves]
    charts = "".join(_chart(name, runs, colors) for name in names)
    more = "".join(_chart(name, runs, colors) for name in sorted(curves.difference(names)))
    if not charts and not more:
        return '<p class="soft">There is no curve yet.</p>'
    if more:
        more = fill("folded", title="More curves", content=f'<div class="charts">{more}</div>')
    labels = [run.label for run in runs]
    return fill("curves", names=legend(zip(colors, labels, strict=True)), charts=charts, more=more)


def _chart(name: str, runs: Sequence[Run], colors: Sequence[str]) -> str:
    # Training is in the background only if there is a curve of an evaluation.
    is_evaluated = any((split, name) in run.curves for run in runs for split in _SPLITS)
    lines = []
    for run, color in zip(runs, colors, strict=True):
        splits = [split for split, other in run.curves if other == name]
        for split in sorted(splits, key=lambda split: split not in _SPLITS):
            label = f"{run.label}, {'training' if split == 'train' else split}"
            is_faint = is_evaluated and split not in _SPLITS
            lines.append(Line(label, color, run.curves[split, name], is_faint))
    return line_chart(_NAMES.get(name, name.replace("_", " ")), lines)


def _differences(runs: Sequence[Run], colors: Sequence[str]) -> str:
    if len(runs) < 2:
        return ""
    differences = differing(runs)
    if not differences:
        return '<p class="soft">Nothing.</p>'
    labels = [
        f"<th>{chip(color)}{escape(run.label)}</th>"
        for run, color in zip(runs, colors, strict=True)
    ]
    rows = [
        [
            f'<td class="key">{code(key)}</td>',
            *(_value_cell(run, value) for run, value in zip(runs, values, strict=True)),
        ]
        for key, values in differences.items()
    ]
    return table(['<th class="key">key</th>', *labels], rows)


def _value_cell(run: Run, value: Any) -> str:
    if not run.config:
        return "<td>?</td>"
    return f"<td>{'–' if value is None else code(format_value(value))}</td>"
