"""The folder in which Keras keeps the data sets that it has downloaded."""

from __future__ import annotations

import os
from pathlib import Path


def keras_datasets() -> Path:
    """Return Keras' folder of data sets: in `KERAS_HOME`, or else in `~/.keras`."""
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return Path(home).expanduser() / "datasets"
