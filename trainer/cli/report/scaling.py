"""The page's section on benchmarks, and their heading, for the console too. No TensorFlow."""

from __future__ import annotations

import html
from collections.abc import Iterable

from trainer.cli.report.data import Run
from trainer.runs.benchmark_record import BenchmarkRecord, Size


def benchmarks(runs: Iterable[Run]) -> str:
    """Return where a step's time goes by the benchmark of each run that has one, as HTML."""
    return "".join(
        f"<h3>{html.escape(run.label)}</h3>"
        f'<p class="soft small">{html.escape(heading(run.benchmark))}</p><ul>'
        + "".join(f"<li>{_line(size, run.benchmark.unit)}</li>" for size in run.benchmark.sizes)
        + "</ul>"
        for run in runs
        if run.benchmark
    )


def heading(record: BenchmarkRecord) -> str:
    """Return a line about what was measured."""
    return (
        f"strategy={record.strategy}, {record.per_replica} examples a step on each replica, "
        f"{record.secs:g} s for each measurement"
    )


def _line(size: Size, unit: str) -> str:
    waiting = min(size.input_wait, 1.0 - size.communication)
    return (
        f"{size.count} {unit}: {1000 * size.step_secs:.2f} ms a step, "
        f"{100 * (1.0 - waiting - size.communication):.0f} % work, {100 * waiting:.0f} % input, "
        f"{100 * size.communication:.0f} % communication"
    )
