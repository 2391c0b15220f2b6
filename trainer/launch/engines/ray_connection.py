"""The connection of a command to a Ray cluster: what cannot run there, and what there is in it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from trainer.cluster import environment
from trainer.cluster.spec import Cluster
from trainer.config.modes import MODES
from trainer.config.schema import Experiment, Ray
from trainer.errors import ConfigError
from trainer.strategies.strategy import Strategy

_LOCAL = "add launch=process"
_STARTS = 3  # of a Ray of this machine, to which Ray gives 30 s: a busy machine needs longer
_TIMED_OUT = "timed out during startup"


def check(experiment: Experiment, strategy: Strategy, declared: Cluster | None) -> None:
    """Check that an experiment can run on Ray.

    Args:
        declared: the cluster that the environment declares; None: it declares none.

    Raises:
        ConfigError: with all problems.
    """
    engine, mode = "launch.engine (ray)", MODES[experiment.mode]
    jobs = " and ".join(sorted(strategy.service_jobs))
    source = declared.source if declared else ""
    problems = {
        f"{engine} starts the processes of the cluster itself, and {source} declares one; unset "
        f"it, or {_LOCAL}": declared,
        f"{engine} and launch.inline (true) exclude each other; "
        "use one of them": experiment.launch.inline,
        f"{engine} has no mode={experiment.mode}, which runs here; {_LOCAL}": not mode.with_ray,
        f"{engine} cannot start again alone, at the same address, a lost process of a strategy "
        f"with the job {jobs}; {_LOCAL}, or use strategy=multi_worker": jobs,
        f"{engine} cannot place the actors of env; {_LOCAL}": experiment.env is not None,
        "strategy.isolate (true) is for processes of one machine; leave it out with "
        f"{engine}": strategy.isolate is True,
    }
    if refused := [problem for problem, is_there in problems.items() if is_there]:
        raise ConfigError(*refused)


@contextmanager
def connected(settings: Ray) -> Iterator[None]:
    """Connect to Ray for the block, or start it here; raise a ConfigError if that fails."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError(
            "launch.engine (ray) needs the package ray, which is missing; "
            "pip install 'steadfast[ray]'"
        ) from error
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = settings.address or environment.ray_address()
    started: Future[None] = Future()
    is_closed = threading.Event()

    def hold() -> None:
        try:
            _connect(address)
            started.set_result(None)
        except Exception as error:
            started.set_exception(error)
        is_closed.wait()
        ray.shutdown()

    # In the main thread Ray would replace the handler of SIGTERM. And the system kills a Ray that
    # was started here when the thread ends that has started it.
    thread = threading.Thread(target=hold, name="ray")
    thread.start()
    try:
        if (problem := started.exception()) is not None:
            reason = " ".join(str(problem).split())[:300]
            name = f"launch.ray.address ({address})" if address else "launch.engine (ray)"
            raise ConfigError(
                f"{name}: cannot connect to Ray: {reason}; run the command on a node of the "
                "cluster, started with ray start"
            ) from problem
        yield
    finally:
        is_closed.set()
        thread.join()


def _connect(address: str | None) -> None:
    import ray

    for number in range(1, _STARTS + 1):
        try:
            ray.init(
                address=address,
                include_dashboard=False if address is None else None,
                log_to_driver=False,  # the output of a process goes to its log
                logging_level=logging.ERROR,
            )
            return
        except Exception as error:
            if number == _STARTS or _TIMED_OUT not in str(error):
                raise
            ray.shutdown()


def is_protected() -> bool:
    """Return whether the cluster accepts those alone who have its token; call it connected."""
    return environment.current().get("RAY_AUTH_MODE", "").lower() == "token"


def create_actors(settings: Ray, count: int) -> tuple[Any, list[Any]]:
    """Ask for places and an actor in each, which start together; return the group and handles."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from trainer.launch.engines.ray_process import RayHost

    bundle = {
        # Ray refuses a bundle of nothing.
        "CPU": settings.cpus if settings.cpus or settings.gpus else 0.001,
        **({"GPU": settings.gpus} if settings.gpus else {}),
    }
    group = placement_group([dict(bundle) for _ in range(count)], settings.placement.upper())
    host = ray.remote(RayHost)
    actors = [
        host.options(
            num_cpus=bundle["CPU"],
            num_gpus=settings.gpus,
            # A call may wait for messages while others pass on requests.
            max_concurrency=8,
            max_restarts=0,  # the supervisor restarts, within its own budget
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            runtime_env={"env_vars": environment.ray_variables()},
        ).remote()
        for index in range(count)
    ]
    return group, actors


def has_places(group: Any) -> bool:
    """Return whether there are places for all actors of a group, which may still be starting."""
    from ray.util.placement_group import placement_group_table

    # Its method `wait` says False after no time even if there are.
    return bool(placement_group_table(group)["state"] == "CREATED")


def remove_actors(group: Any, actors: list[Any]) -> None:
    """Kill actors, and give their places back."""
    import ray
    from ray.util.placement_group import remove_placement_group

    for actor in actors:
        ray.kill(actor)
    remove_placement_group(group)


def describe_request(settings: Ray, count: int) -> str:
    """Return what is asked for: `2 processes with 1 CPU each (spread)`."""
    noun = "process" if count == 1 else "processes"
    each = _amounts({"CPU": settings.cpus, "GPU": settings.gpus})
    return f"{count} {noun} with {each} each ({settings.placement})"


def describe_cluster() -> str:
    """Return what the cluster has: `2 nodes with 4 CPUs, free are 1 CPU`."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    noun = "node" if len(alive) == 1 else "nodes"
    total, free = ray.cluster_resources(), ray.available_resources()
    return f"{len(alive)} {noun} with {_amounts(total)}, free are {_amounts(free)}"


def _amounts(resources: dict[str, float]) -> str:
    amounts = [
        f"{math.floor(resources.get(name, 0))} {name}{'' if resources.get(name) == 1 else 's'}"
        for name in ("CPU", "GPU")
    ]
    return " and ".join(amounts if resources.get("GPU") else amounts[:1])
