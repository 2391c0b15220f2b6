"""The environment of a process: the only place that reads or writes `os.environ`. No TensorFlow."""

from __future__ import annotations

import os


def worker_environment() -> dict[str, str]:
    """Gives the environment of a worker process."""
    environment = dict(os.environ)
    # A stale TF_CONFIG of the shell must not reach a strategy of one process: TensorFlow would wait for a cluster.
    environment.pop("TF_CONFIG", None)
    # A log that is read while the run goes on, and after a kill, must not sit in a buffer.
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_import_root(), environment.get("PYTHONPATH")]))
    return environment


def prepare_environment() -> None:
    """Sets what TensorFlow reads at its import: the Keras line (docs/adr/0001-tf-keras.md), quiet logs."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def _import_root() -> str:
    """Gives the folder from which this very package was imported, so that a worker imports the same one."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
