"""The section about benchmarks."""

from tests.runs.test_benchmark_record import RECORD
from trainer.cli.report import data, scaling
from trainer.runs import benchmark_record


def test_report_about_a_run_has_its_benchmark(tmp_path):
    (tmp_path / "run-benchmark").mkdir()
    benchmark_record.write(tmp_path / "run-benchmark", RECORD)
    runs = [data.read(tmp_path / name, name) for name in ("run", "other")]
    assert [run.benchmark for run in runs] == [RECORD, None]
    section = scaling.benchmarks(runs)
    assert section.count("<h3>") == 1
    assert "<h3>run</h3>" in section
    assert "2 processes: 10.00 ms a step, 70 % work, 10 % input, 20 % communication" in section
    assert scaling.benchmarks(runs[1:]) == ""
