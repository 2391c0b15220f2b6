"""Hardware that is not here."""

from types import SimpleNamespace

import pytest
import tensorflow as tf


@pytest.fixture
def two_gpus(monkeypatch):
    """Makes TensorFlow say that this machine has two GPUs and one CPU."""
    found = {"GPU": [SimpleNamespace(name=f"/device:GPU:{number}") for number in range(2)], "CPU": [SimpleNamespace(name="/device:CPU:0")]}
    for kind in ("list_logical_devices", "list_physical_devices"):
        monkeypatch.setattr(tf.config, kind, lambda device_type: found.get(device_type, []))


@pytest.fixture
def no_tpu(monkeypatch):
    """Makes sure that no TPU is declared, whatever machine the tests run on."""
    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.delenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", raising=False)
    monkeypatch.setattr("trainer.cluster.glob", lambda pattern: [])
