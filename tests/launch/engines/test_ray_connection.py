"""What is refused with launch=ray, and what the command learns from a cluster, which is a fake."""

import sys
import threading

import pytest

from trainer.cli.compose import compose
from trainer.config.schema import Ray
from trainer.errors import ConfigError
from trainer.launch.engines import ray_connection
from trainer.strategies.select import select_strategy

RUNS = ["launch=ray", "strategy=multi_worker"]


def problems(*overrides, declared=None):
    experiment = compose([*RUNS, *overrides])
    with pytest.raises(ConfigError) as error:
        ray_connection.check(experiment, select_strategy(experiment), declared)
    return list(error.value.problems)


def test_what_works_on_one_machine_alone_is_refused():
    assert problems("launch.inline=true", "mode=benchmark", "strategy.isolate=true") == [
        "launch.engine (ray) and launch.inline (true) exclude each other; use one of them",
        "launch.engine (ray) has no mode=benchmark, which measures here; add launch=process",
        "strategy.isolate (true) is for processes of one machine; leave it out with "
        "launch.engine (ray)",
    ]


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
