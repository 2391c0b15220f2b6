"""What is refused with launch=ray, and what the command learns from a cluster, which is a fake."""

import sys
import threading

import pytest

from trainer.config.schema import Ray
from trainer.errors import ConfigError
from trainer.launch.engines import ray_connection


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    expected = "needs the package ray, which is missing; pip install 'steadfast\\[ray\\]'$"
    with pytest.raises(ConfigError, match=expected), ray_connection.connected(Ray()):
        pass


class StartingRay:
    """The module `ray`, whose starts fail at first; the system ends it with the thread that starts.

    Args:
        errors: what `init` raises, one call after the other; None: it starts.
    """

    def __init__(self, *errors):
        self._errors = list(errors)
        self._thread = None
        self.num_starts = 0

    def init(self, **options):
        self.num_starts += 1
        if (error := self._errors.pop(0)) is not None:
            raise error
        self._thread = threading.current_thread()

    def shutdown(self):
        self._thread = None

    def is_alive(self):
        return self._thread is not None and self._thread.is_alive()


SLOW = Exception("The current node timed out during startup.")


def test_ray_that_is_started_lives_while_connected(monkeypatch):
    ray = StartingRay(SLOW, None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ray_connection.connected(Ray()):
        assert ray.is_alive()
        assert ray.num_starts == 2
    assert not ray.is_alive()


@pytest.mark.parametrize(
    ("errors", "num_starts"), [([SLOW, SLOW, SLOW], 3), ([OSError("refused"), None], 1)]
)
def test_ray_that_does_not_start_is_named(monkeypatch, errors, num_starts):
    ray = StartingRay(*errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(ConfigError, match=f"cannot connect to Ray: {errors[-2]}"),
        ray_connection.connected(Ray()),
    ):
        pass
    assert ray.num_starts == num_starts
