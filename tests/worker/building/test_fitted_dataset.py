"""What a dataset learns, kept in the run directory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.runs.directory import fitted_file
from trainer.worker.building.build_dataset import Fitted, fit_or_restore
from trainer.worker.context import WorkerContext


class Mean:
    """Learns one number."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.calls: list[str] = []

    def fit(self) -> str:
        self.calls.append("fit")
        if not self.value:
            raise ValueError("a.csv, line 3: no number")
        return self.value

    def restore(self, fitted: str) -> None:
        self.calls.append(f"restore {fitted}")

    def describe(self) -> list[str]:
        return [f"mean {self.value}"]


def context(run_dir: Path, lines: list[Any], *overrides: str) -> WorkerContext:
    experiment = compose(list(overrides))
    return WorkerContext(experiment, run_dir, Channel(lines.append))


def test_first_fit_is_kept_and_restored(tmp_path: Path) -> None:
    lines: list[Any] = []
    first = Mean("7")
    assert isinstance(first, Fitted)
    fit_or_restore(first, context(tmp_path, lines), None)
    assert (first.calls, len(lines)) == (["fit"], 1)
    kept = fitted_file(tmp_path).read_bytes()
    for mode in ("train", "evaluate"):
        second = Mean("8")
        fit_or_restore(second, context(tmp_path, lines, f"mode={mode}"), None)
        assert (second.calls, fitted_file(tmp_path).read_bytes()) == (["restore 7"], kept)


def test_fit_of_an_earlier_version_is_restored_and_a_changed_one_refused(tmp_path: Path) -> None:
    for text in ('{"mean": 7}', "7", "a,b"):
        fitted_file(tmp_path).write_text(text)
        data = Mean("8")
        fit_or_restore(data, context(tmp_path, []), None)
        assert data.calls == [f"restore {text}"]
    write_json(fitted_file(tmp_path), {"fitted": "7"})
    fitted_file(tmp_path).write_text(fitted_file(tmp_path).read_text().replace("7", "6", 1))
    with pytest.raises(ConfigError, match=r"dataset.json cannot be read: its content has changed"):
        fit_or_restore(Mean("8"), context(tmp_path, []), None)


def test_all_processes_use_the_fit_of_the_chief(tmp_path: Path) -> None:
    group: Any = SimpleNamespace(broadcast_text_from_chief=lambda text: "chief's")
    data = Mean("7")
    fit_or_restore(data, context(tmp_path, []), group)
    assert data.calls == ["fit", "restore chief's"]


def test_wrong_data_and_a_lost_fit_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset: a.csv, line 3: no number"):
        fit_or_restore(Mean(""), context(tmp_path, []), None)
    assert not fitted_file(tmp_path).exists()
    with pytest.raises(ConfigError, match=r"dataset.json is missing: .*, or train again"):
        fit_or_restore(Mean("7"), context(tmp_path, [], "mode=predict"), None)
