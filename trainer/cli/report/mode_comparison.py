"""Compares synchronous with asynchronous training: figures, a table, sections of a page.

No TensorFlow.
"""

from __future__ import annotations

import bisect
import html
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.cli.report.charts import Curve, Line, colors_of, line_chart
from trainer.cli.report.data import Run
from trainer.runs.status import main_metric
from trainer.runs.worker_times import WorkerRecord, staleness_bins
from trainer.text import align_columns, format_duration, format_metric


@dataclass(frozen=True)
class ModeRun:
    """A finished run of a comparison.

    Attributes:
        run: what the report knows of it.
        is_async: whether its workers do not wait for one another.
        is_slow: whether one worker is slowed down.
        global_size: examples in a step.
    """

    run: Run
    is_async: bool
    is_slow: bool
    global_size: int

    @property
    def train_secs(self) -> float:
        """Seconds of all steps, those of the first graph call left out."""
        curve = self._curve("train", "train_secs")
        return curve[-1][1] if curve else 0.0

    @property
    def examples_per_sec(self) -> float:
        """The rate over the whole run."""
        return self.samples / self.train_secs if self.train_secs else 0.0

    @property
    def samples(self) -> int:
        """Examples that it has trained on."""
        return self.run.outcome.step * self.global_size

    @property
    def workers(self) -> WorkerRecord:
        """What its workers did."""
        return self.run.time.workers if self.run.time else WorkerRecord()

    @property
    def staleness(self) -> tuple[float, float] | None:
        """The mean and the largest staleness of an update; None: it is synchronous."""
        means = self._curve("train", "staleness_mean")
        if not means:
            return None
        # Each mean is that of the steps since the point before.
        ends = [0.0, *(step for step, _ in means)]
        sizes = [end - begin for begin, end in itertools.pairwise(ends)]
        total = sum(mean * size for (_, mean), size in zip(means, sizes, strict=True))
        return total / ends[-1], max(value for _, value in self._curve("train", "staleness_max"))

    def against_samples(self, split: str, metric: str) -> Curve:
        """Return the points of a metric over the samples trained on."""
        return [(step * self.global_size, value) for step, value in self._curve(split, metric)]

    def against_time(self, split: str, metric: str) -> Curve:
        """Return the points of a metric over the seconds of training."""
        return [(self.secs_at(step), value) for step, value in self._curve(split, metric)]

    def secs_at(self, step: float) -> float:
        """Return the seconds of training up to a step, between two reports interpolated."""
        points = [(0.0, 0.0), *self._curve("train", "train_secs")]
        last = bisect.bisect_left([at for at, _ in points], step)
        if last >= len(points):
            return points[-1][1]
        (low, before), (high, after) = points[max(0, last - 1)], points[last]
        return after if high == low else before + (after - before) * (step - low) / (high - low)

    def value_at(self, secs: float, metric: str) -> float | None:
        """Return the newest value of a test metric after so many seconds; None: there is none."""
        # Two runs of the same length must not differ by rounding.
        points = [
            value for at, value in self.against_time("test", metric) if at <= secs * (1 + 1e-9)
        ]
        return points[-1] if points else None

    def _curve(self, split: str, metric: str) -> Curve:
        return self.run.curves.get((split, metric), ())


@dataclass(frozen=True)
class Comparison:
    """The runs of one experiment, synchronous and asynchronous, with and without a slow worker.

    Attributes:
        runs: in the order of the table.
        slow: what is done to the slow worker, in words.
    """

    runs: Sequence[ModeRun]
    slow: str

    @property
    def metrics(self) -> list[str]:
        """The test metrics to compare: the loss, and the main metric."""
        names = list(dict.fromkeys(name for run in self.runs for name in run.run.outcome.metrics))
        return list(dict.fromkeys(["loss", main_metric(names)])) if names else []

    def equal_secs(self, run: ModeRun) -> float:
        """Return for how long all runs with the same workers have trained at least."""
        return min(other.train_secs for other in self.runs if other.is_slow == run.is_slow)

    def rows(self) -> list[dict[str, str]]:
        """Return the table as text: a row for each run, by the name of the column."""
        return [self._row(run) for run in self.runs]

    def table(self) -> list[str]:
        """Return the lines of the table for a console."""
        rows = self.rows()
        names = list(rows[0])
        cells = [names, *([row[name] for name in names] for row in rows)]
        return align_columns(cells, "<" + ">" * (len(names) - 1))

    def conclusions(self) -> list[str]:
        """Return what the figures come to, a sentence each."""
        lines = []
        for even, slow in self._pairs():
            share = slow.examples_per_sec / even.examples_per_sec if even.examples_per_sec else 0.0
            lines.append(
                f"With {self.slow}, {even.run.label} trains at {100 * share:.0f} % of its speed."
            )
        stragglers = [(run, run.workers.straggler()) for run in self.runs]
        lines += [f"{run.run.label}: {line}." for run, line in stragglers if line]
        return lines

    def content(self) -> dict[str, Any]:
        """Return everything for a JSON file."""
        return {
            "slow": self.slow,
            "runs": {run.run.label: self._content(run) for run in self.runs},
            "conclusions": self.conclusions(),
        }

    def sections(self) -> list[tuple[str, str]]:
        """Return titles and contents of the sections of a page."""
        text = "".join(f"<p>{html.escape(line)}</p>" for line in self.conclusions())
        return [
            ("Synchronous against asynchronous", f"{self._html_table()}{text}"),
            ("At equal samples", self._charts("sample")),
            ("At equal time", self._charts("second")),
        ]

    def _pairs(self) -> list[tuple[ModeRun, ModeRun]]:
        return [
            (even, slow)
            for even in self.runs
            for slow in self.runs
            if even.is_async == slow.is_async and slow.is_slow and not even.is_slow
        ]

    def _row(self, run: ModeRun) -> dict[str, str]:
        stale = run.staleness
        staleness = "-" if stale is None else f"{stale[0]:.1f}, {stale[1]:.0f} at most"
        metrics = run.run.outcome.metrics
        secs = self.equal_secs(run)
        at_time = {f"{name} at equal time": run.value_at(secs, name) for name in self.metrics}
        return {
            "run": run.run.label,
            "samples": f"{run.samples:,}",
            **{f"test {name}": _number(metrics.get(name)) for name in self.metrics},
            "time": format_duration(run.train_secs),
            "examples/s": f"{run.examples_per_sec:,.0f}",
            "waiting": f"{100 * run.workers.wait_fraction:.0f} %",
            "staleness": staleness,
            **{name: _number(value) for name, value in at_time.items()},
        }

    def _content(self, run: ModeRun) -> dict[str, Any]:
        secs = self.equal_secs(run)
        return {
            "directory": run.run.place,
            "asynchronous": run.is_async,
            "slow_worker": run.is_slow,
            "steps": run.run.outcome.step,
            "samples": run.samples,
            "metrics": dict(run.run.outcome.metrics),
            "train_secs": run.train_secs,
            "examples_per_sec": run.examples_per_sec,
            "wait_fraction": run.workers.wait_fraction,
            "workers": {name: asdict(time) for name, time in run.workers.times.items()},
            "staleness": _staleness_content(run.staleness, run.workers.staleness),
            "at_equal_time": {
                "secs": secs,
                **{name: run.value_at(secs, name) for name in self.metrics},
            },
            "curves": {
                f"{split} loss": {
                    "samples": run.against_samples(split, "loss"),
                    "secs": run.against_time(split, "loss"),
                }
                for split in ("train", "test")
            },
        }

    def _html_table(self) -> str:
        rows = self.rows()
        head = "".join(f'<th class="number">{html.escape(name)}</th>' for name in rows[0])
        body = "".join(
            "<tr>"
            + "".join(f'<td class="number">{html.escape(cell)}</td>' for cell in row.values())
            + "</tr>"
            for row in rows
        )
        note = (
            '<p class="soft small">Time is that of the steps alone, without start, compilation, '
            "evaluation and saving. At equal time: the newest evaluation when the faster run with "
            "the same workers was done.</p>"
        )
        return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>{note}'

    def _charts(self, axis: str) -> str:
        colors = colors_of(len(self.runs))
        charts = []
        for split, metric in [("train", "loss"), *(("test", name) for name in self.metrics)]:
            lines = [
                Line(
                    run.run.label,
                    color,
                    run.against_samples(split, metric)
                    if axis == "sample"
                    else run.against_time(split, metric),
                    is_faint=run.is_slow,
                )
                for run, color in zip(self.runs, colors, strict=True)
            ]
            charts.append(line_chart(f"{split} {metric}", lines, axis))
        legend = "".join(
            f'<span><span class="chip" style="background:{color}"></span>'
            f"{html.escape(run.run.label)}</span>"
            for run, color in zip(self.runs, colors, strict=True)
        )
        return f'<div class="legend">{legend}</div><div class="charts">{"".join(charts)}</div>'


def _staleness_content(
    staleness: tuple[float, float] | None, counts: Sequence[int]
) -> Mapping[str, Any] | None:
    if staleness is None:
        return None
    return {
        "mean": staleness[0],
        "max": staleness[1],
        "updates": dict(zip(staleness_bins(), counts, strict=False)),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else format_metric(value)
