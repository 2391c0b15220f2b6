"""What the tests of datasets share."""

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder of its own, and so an empty cache of data."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"
