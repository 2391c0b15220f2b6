"""Runs for commands that show them."""

import pytest

from trainer.cli.compose import compose
from trainer.runs.directory import open_run


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make a run of some overrides and return its path."""
    monkeypatch.chdir(tmp_path)

    def open_and_leave(*overrides):
        run = open_run(compose(list(overrides)), [], None)
        run.release()
        return str(run.path)

    return open_and_leave
