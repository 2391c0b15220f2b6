"""The page's section on workers: who works, who waits, and how stale updates are.

No TensorFlow.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from trainer.cli.report.run_data import Run
from trainer.runs.worker_times import WorkerRecord, WorkerTime, staleness_bins

_COLORS = {"steps": "#009e73", "waiting": "#e69f00"}
_NOTE = (
    '<p class="soft small">Seconds of each worker\'s own steps, and of waiting for others; '
    "compilation, evaluation and saving are left out. The staleness of an update is how many other "
    "steps began between the read of the variables and the update.</p>"
)


def workers(runs: Iterable[Run]) -> str:
    """Return how each worker of each run spent its time, and the staleness of its updates."""
    parts = [
        _of_run(run.label, run.time.workers) for run in runs if run.time and run.time.workers.times
    ]
    return _NOTE + "".join(parts) if parts else ""


def _of_run(label: str, record: WorkerRecord) -> str:
    line = record.straggler()
    straggler = f"<p>{html.escape(line)}.</p>" if line else ""
    rows = "".join(_row(name, time) for name, time in record.times.items())
    return (
        f"<h3>{html.escape(label)}</h3>{straggler}"
        '<div class="wide"><table><tr><th>worker</th><th class="number">steps</th>'
        '<th class="number">seconds of steps</th><th class="number">of waiting</th><th></th></tr>'
        f"{rows}</table></div>{staleness(record.staleness)}"
    )


def _row(name: str, time: WorkerTime) -> str:
    share = time.wait_secs / time.secs if time.secs else 0.0
    parts = {"steps": 100 * (1 - share), "waiting": 100 * share}
    bar = "".join(
        f'<span style="width:{part:.2f}%;background:{_COLORS[kind]}" title="{kind}"></span>'
        for kind, part in parts.items()
        if part > 0
    )
    return (
        f'<tr><td>{html.escape(name)}</td><td class="number">{time.steps:,}</td>'
        f'<td class="number">{time.step_secs:.2f}</td><td class="number">{time.wait_secs:.2f}</td>'
        f'<td style="min-width:12rem"><div class="bar">{bar}</div></td></tr>'
    )


def staleness(counts: Sequence[int]) -> str:
    """Return a histogram over `STALENESS_EDGES`, or an empty string without any update."""
    if not any(counts):
        return ""
    used = max(number for number, count in enumerate(counts) if count) + 1
    total, most = sum(counts), max(counts)
    rows = "".join(
        f'<span>{name}</span><span class="bar"><span style="width:{100 * count / most:.2f}%;'
        f'background:{_COLORS["steps"]}"></span></span>'
        f'<span class="soft">{100 * count / total:.1f} %</span>'
        for name, count in zip(staleness_bins()[:used], counts, strict=False)
    )
    return f'<p class="soft small">Staleness of its updates</p><div class="bins">{rows}</div>'
