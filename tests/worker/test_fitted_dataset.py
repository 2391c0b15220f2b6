"""What a dataset learns, kept in the run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.runs.directory import fitted_file
from trainer.worker.dataset import Fitted, fit_or_restore


class Mean:
    """Learns one number."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.calls: list[str] = []

    def fit(self) -> str:
        self.calls.append("fit")
        return self.value

    def restore(self, fitted: str) -> None:
        self.calls.append(f"restore {fitted}")

    def describe(self) -> list[str]:
        return [f"mean {self.value}"]


def fit(
    dataset: Mean, run_dir: Path, chiefs: Callable[[str], str] = str, *, fits: bool = True
) -> None:
    group: Any = SimpleNamespace(broadcast_text_from_chief=chiefs)
    fit_or_restore(dataset, run_dir, group, is_chief=True, fits=fits)


def test_first_fit_is_kept_and_restored(tmp_path: Path) -> None:
    first = Mean("7")
    assert isinstance(first, Fitted)
    fit(first, tmp_path)
    assert first.calls == ["fit"]
    kept = fitted_file(tmp_path).read_bytes()
    for fits in (True, False):
        second = Mean("8")
        fit(second, tmp_path, fits=fits)
        assert (second.calls, fitted_file(tmp_path).read_bytes()) == (["restore 7"], kept)


def test_fit_of_an_earlier_version_is_restored_and_a_changed_one_refused(tmp_path: Path) -> None:
    for text in ('{"mean": 7}', "7", "a,b"):
        fitted_file(tmp_path).write_text(text)
        data = Mean("8")
        fit(data, tmp_path)
        assert data.calls == [f"restore {text}"]
    write_json(fitted_file(tmp_path), {"fitted": "7"})
    fitted_file(tmp_path).write_text(fitted_file(tmp_path).read_text().replace("7", "6", 1))
    with pytest.raises(ConfigError, match=r"dataset.json cannot be read: its content has changed"):
        fit(Mean("8"), tmp_path)


def test_all_processes_use_the_fit_of_the_chief(tmp_path: Path) -> None:
    data = Mean("7")
    fit(data, tmp_path, lambda text: "chief's")
    assert data.calls == ["fit", "restore chief's"]


def test_lost_fit_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset.json is missing: .*, or train again"):
        fit(Mean("7"), tmp_path, fits=False)
