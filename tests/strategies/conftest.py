"""Fake hardware."""

from types import SimpleNamespace

import pytest
import tensorflow as tf


class FakeGpus:
    """A machine with some GPUs and one CPU, as `tf.config` reports it.

    Attributes:
        visible: the GPUs that this process may use.
    """

    def __init__(self, count):
        self.physical = [SimpleNamespace(name=f"/device:GPU:{index}") for index in range(count)]
        self.visible = self.physical
        self.cpus = [SimpleNamespace(name="/device:CPU:0")]

    def list_physical_devices(self, kind):
        return {"GPU": self.physical, "CPU": self.cpus}.get(kind, [])

    def get_visible_devices(self, kind):
        return {"GPU": self.visible, "CPU": self.cpus}.get(kind, [])

    def set_visible_devices(self, devices, kind):
        assert kind == "GPU"
        self.visible = devices

    def install(self, monkeypatch):
        for name in ("list_physical_devices", "get_visible_devices", "set_visible_devices"):
            monkeypatch.setattr(tf.config, name, getattr(self, name))
        monkeypatch.setattr(tf.config, "list_logical_devices", self.get_visible_devices)
        return self


@pytest.fixture
def two_gpus(monkeypatch):
    """Let TensorFlow report two GPUs and one CPU."""
    return FakeGpus(2).install(monkeypatch)


@pytest.fixture
def one_gpu(monkeypatch):
    """Let TensorFlow report one GPU and one CPU."""
    return FakeGpus(1).install(monkeypatch)


@pytest.fixture
def no_tpu(monkeypatch):
    """Let no TPU be declared, on any machine."""
    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.delenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", raising=False)
    monkeypatch.setattr("trainer.cluster.environment.glob", lambda pattern: [])
