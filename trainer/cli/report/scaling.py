"""The page about a benchmark, and its tables, which the console shows too. No TensorFlow."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence

from trainer.cli.report.data import Run
from trainer.cli.report.document import document, section
from trainer.runs.benchmark_record import BenchmarkRecord, Size
from trainer.text import format_bytes

_BAR_COLORS = {"work": "#009e73", "input": "#e69f00", "communication": "#d55e00"}


def render(record: BenchmarkRecord, title: str, limit: str) -> str:
    """Return the page as HTML.

    Args:
        record: what was measured.
        title: the name of the benchmark.
        limit: what to change first.
    """
    return document(
        title,
        f"<header><h1>{html.escape(title)}</h1>"
        f'<p class="soft">{html.escape(heading(record))}</p></header>',
        section("Change first", f"<p>{html.escape(limit)}.</p>"),
        section("Where a step's time goes", _bars(record)),
        section("Figures", _table(size_rows(record))),
        section("Kernels", _table(kernel_rows(record)) if record.kernels else ""),
    )


def benchmarks(runs: Iterable[Run]) -> str:
    """Return where a step's time goes by the benchmark of each run that has one, as HTML."""
    return "".join(
        f"<h3>{html.escape(run.label)}</h3>"
        f'<p class="soft small">{html.escape(heading(run.benchmark))}</p>{_bars(run.benchmark)}'
        for run in runs
        if run.benchmark
    )


def heading(record: BenchmarkRecord) -> str:
    """Return a line about what was measured."""
    return (
        f"strategy={record.strategy}, {record.per_replica} examples a step on each replica, "
        f"{record.secs:g} s for each measurement"
    )


def size_rows(record: BenchmarkRecord) -> list[list[str]]:
    """Return a row for each figure: its name, then its text for each size."""
    return [[name, *(text(size) for size in record.sizes)] for name, text in _figures(record)]


def _figures(record: BenchmarkRecord) -> Iterator[tuple[str, Callable[[Size], str]]]:
    yield record.unit, lambda size: str(size.count)
    yield "examples/s", lambda size: f"{size.examples_per_sec:,.0f}"
    yield "times the smallest", lambda size: f"{record.speedup(size):.2f}"
    yield "step, ms", lambda size: _ms(size.step_secs)
    yield "without exchange, ms", lambda size: _ms(size.alone_step_secs)
    yield "efficiency", lambda size: _percent(size.efficiency)
    yield "predicted", lambda size: _percent(size.predicted_efficiency)
    yield "exchange alone, ms", lambda size: _ms(size.exchange_secs)
    yield "small all-reduce, ms", lambda size: _ms(size.latency_secs)
    yield "input wait", lambda size: _percent(size.input_wait)
    yield "processor time, ms", lambda size: _ms(size.processor_secs)
    yield "2(n-1)/n S", lambda size: format_bytes(size.bound_bytes)
    yield "planned to send", lambda size: format_bytes(size.planned_bytes)
    yield "sent by network", lambda size: _or_dash(size.network_bytes, format_bytes)
    yield "peak memory", lambda size: format_bytes(2**20 * size.peak_memory_mib)
    if record.largest.gpu_memory_mib is not None:
        gpu = "peak memory of a GPU"
        yield gpu, lambda size: _or_dash(size.gpu_memory_mib, lambda mib: format_bytes(2**20 * mib))


def kernel_rows(record: BenchmarkRecord) -> list[list[str]]:
    """Return a heading, then a row for each kind of kernel: name, milliseconds, share."""
    total = sum(record.kernels.values())
    return [
        ["kernel", "ms a step", "share"],
        *([name, _ms(secs), _percent(secs / total)] for name, secs in record.kernels.items()),
    ]


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (
        "".join(
            f'<{tag} class="{"number" if column else "key"}">{html.escape(text)}</{tag}>'
            for column, text in enumerate(row)
        )
        for tag, row in zip(("th", *("td",) * len(rows)), rows, strict=False)
    )
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
        "</div>"
    )


def _bars(record: BenchmarkRecord) -> str:
    """Return a bar for each size: work, input and communication, as shares of a step."""
    bars = []
    for size in record.sizes:
        shares = {
            "input": min(size.input_wait, 1.0 - size.communication),
            "communication": size.communication,
        }
        shares = {"work": 1.0 - sum(shares.values()), **shares}
        parts = "".join(
            f'<span style="width:{100 * share:.2f}%;background:{_BAR_COLORS[name]}" '
            f'title="{name} {_percent(share)}"></span>'
            for name, share in shares.items()
        )
        words = ", ".join(f"{_percent(share)} {name}" for name, share in shares.items())
        label = f"{size.count} {record.unit}: {_ms(size.step_secs)} ms a step"
        bars.append(
            f'<div class="time"><div>{html.escape(label)}</div><div class="bar">{parts}</div>'
            f'<div class="soft small">{words}</div></div>'
        )
    return "".join(bars)


def _ms(secs: float | None) -> str:
    return _or_dash(secs, lambda value: f"{1000 * value:.{2 if value >= 0.001 else 3}f}")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)
