"""The page about a benchmark, and the record that it shows."""

import json
from dataclasses import replace

from tests.launch.test_benchmark_limit import RECORD, SIZE
from trainer.cli.report import data, scaling
from trainer.runs import benchmark_record

ONE = replace(
    SIZE,
    count=1,
    replicas=1,
    examples_per_sec=8000.0,
    bound_bytes=0.0,
    planned_bytes=0.0,
    latency_secs=None,
    exchange_secs=None,
)
TWO = replace(SIZE, network_bytes=4100.0, alone_step_secs=0.008, input_wait=0.1)
BOTH = replace(RECORD, sizes=[ONE, TWO])


def test_table_has_a_column_for_each_size():
    rows = {name: cells for name, *cells in scaling.size_rows(BOTH)}
    assert rows["processes"] == ["1", "2"]
    assert rows["examples/s"] == ["8,000", "12,800"]
    assert rows["times the smallest"] == ["1.00", "1.60"]
    assert rows["step, ms"] == ["10.00", "10.00"]
    assert rows["without exchange, ms"] == ["9.50", "8.00"]
    assert rows["efficiency"] == ["95 %", "80 %"]
    assert rows["predicted"] == ["100 %", "94 %"]
    assert rows["exchange alone, ms"] == ["-", "0.500"]
    assert rows["2(n-1)/n S"] == ["0 B", "4.0 kB"]
    assert rows["sent by network"] == ["-", "4.1 kB"]
    assert "peak memory of a GPU" not in rows


def test_gpu_memory_is_shown_if_there_is_any():
    record = replace(BOTH, sizes=[replace(TWO, gpu_memory_mib=1000.0)])
    rows = {name: cells for name, *cells in scaling.size_rows(record)}
    assert rows["peak memory of a GPU"] == ["1.0 GB"]


def test_kernels_have_their_share():
    assert scaling.kernel_rows(BOTH)[1:] == [
        ["Conv2D", "6.00", "75 %"],
        ["MatMul", "2.00", "25 %"],
    ]


def test_page_has_a_bar_for_each_size_and_needs_no_network():
    page = scaling.render(BOTH, "a <run>", "input & more")
    assert page.startswith("<!doctype html>")
    assert "<h1>a &lt;run&gt;</h1>" in page
    assert "<p>input &amp; more.</p>" in page
    assert "70 % work, 10 % input, 20 % communication" in page
    assert page.count('class="bar"') == 2
    assert "Conv2D" in page
    assert "http" not in page.replace("http-equiv", "")


def test_record_is_read_as_it_was_written(tmp_path):
    limit = {"name": "input", "text": "input: ..."}
    benchmark_record.write(tmp_path, BOTH, limit)
    content = json.loads((tmp_path / "benchmark.json").read_text())
    assert content["limit"] == limit
    assert content["sizes"][1]["efficiency"] == 0.8
    assert content["sizes"][1]["speedup"] == 1.6
    assert content["sizes"][1]["predicted_efficiency"] == 0.008 / 0.0085
    assert benchmark_record.read(tmp_path) == BOTH


def test_report_about_a_run_has_its_benchmark(tmp_path):
    (tmp_path / "run-benchmark").mkdir()
    benchmark_record.write(tmp_path / "run-benchmark", BOTH, {})
    runs = [data.read(tmp_path / name, name) for name in ("run", "other")]
    assert [run.benchmark for run in runs] == [BOTH, None]
    section = scaling.benchmarks(runs)
    assert section.count("<h3>") == 1
    assert "<h3>run</h3>" in section
    assert "70 % work, 10 % input, 20 % communication" in section
    assert scaling.benchmarks(runs[1:]) == ""
