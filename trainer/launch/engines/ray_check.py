"""What cannot be run with launch=ray, found before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.strategies.strategy import Strategy

_MODES = ("train", "evaluate", "predict", "export", "plan")
_LOCAL = "add launch=process"


def check(experiment: Experiment, strategy: Strategy, declared: Cluster | None) -> None:
    """Check that an experiment can run on Ray.

    Args:
        experiment: the configuration.
        strategy: the resolved strategy.
        declared: the cluster that the environment declares; None: it declares none.

    Raises:
        ConfigError: with all problems.
    """
    if problems := list(_problems(experiment, strategy, declared)):
        raise ConfigError(*problems)


def _problems(
    experiment: Experiment, strategy: Strategy, declared: Cluster | None
) -> Iterator[str]:
    engine = "launch.engine (ray)"
    if declared:
        yield (
            f"{engine} starts the processes of the cluster itself, and {declared.source} declares "
            f"one; unset it, or {_LOCAL}"
        )
    if experiment.launch.inline:
        yield f"{engine} and launch.inline (true) exclude each other; use one of them"
    if experiment.mode not in _MODES:
        yield f"{engine} has no mode={experiment.mode}, which measures here; {_LOCAL}"
    if strategy.service_jobs:
        jobs = " and ".join(sorted(strategy.service_jobs))
        yield (
            f"{engine} cannot start again alone, at the same address, a lost process of a strategy "
            f"with the job {jobs}; {_LOCAL}, or use strategy=multi_worker"
        )
    if experiment.env is not None:
        yield f"{engine} cannot place the actors of env; {_LOCAL}"
    if strategy.isolate is True:
        yield f"strategy.isolate (true) is for processes of one machine; leave it out with {engine}"
