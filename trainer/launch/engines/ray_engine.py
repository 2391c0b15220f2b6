"""launch=ray: the processes of a run on the nodes of a Ray cluster.

The supervisor stays in the command. Each attempt gets a placement group with an actor for every
process, see `ray_process`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.cluster import discovery
from trainer.cluster.spec import RAY, Cluster, ProcessId
from trainer.config.batch_sizes import divides
from trainer.errors import CRASHED, WRONG_INPUT, ConfigError
from trainer.files import clear_temporaries
from trainer.launch.engines import ray_connection
from trainer.launch.engines.ray_process import ManagedProcess, Place, RayProcess
from trainer.launch.processes.worker_process import WorkerProcess
from trainer.launch.run_context import RunContext
from trainer.launch.supervision.attempt import Failure
from trainer.launch.supervision.supervisor import Supervisor
from trainer.runs.directory import lock_file
from trainer.runs.identity import run_address
from trainer.runs.ledger import Ledger

_OPEN_WARNING = (
    "warning: this Ray cluster takes commands from everybody who reaches its ports; "
    "start it with RAY_AUTH_MODE=token"
)
_POLL_SECS = 0.5
_RETRY_SECS = 2.0  # between two tries to start: Ray may learn late that a node is lost
_NOTICE_SECS = 10.0  # how long to wait for places before the user is told
_SMALLER_SECS = 10.0  # how long Ray may take to place fewer processes than asked for


def supervise(
    context: RunContext, beside: Sequence[Cluster], ledger: Ledger
) -> tuple[int, Failure | None]:
    """Run an experiment on Ray; call it in `ray_connection.connected`.

    Args:
        beside: processes that run beside the training, on the machine of the command.

    Returns:
        The exit code, and the failure of the last attempt that failed, or None.
    """
    engine = RayEngine(context, sizes(context), beside)
    supervisor = Supervisor(context, engine.members, engine.start, ledger)
    if not ray_connection.is_protected():
        context.console.line(_OPEN_WARNING)
    try:
        return supervisor.supervise(), supervisor.failure
    except ConfigError as error:
        for problem in error.problems:
            context.console.error(problem)
        return WRONG_INPUT, supervisor.failure
    except PlacementError as error:
        context.console.error(str(error))
        return CRASHED, supervisor.failure
    finally:
        engine.close()


def sizes(context: RunContext) -> list[int]:
    """Return with how many processes a run may continue, the most first; never empty."""
    full = len(context.strategy.process_ids(None)) or 1
    least = context.experiment.launch.ray.min_workers or full
    batch = context.experiment.batch
    return [full, *(size for size in range(full - 1, least - 1, -1) if divides(batch, size))]


class PlacementError(Exception):
    """Ray has no places for the processes; the message is one line for the user."""


@dataclass
class _Placement:
    """The actors of one attempt, and where they are.

    Attributes:
        actors: their handles.
        answers: references to their places.
        places: where they are, as far as they have started.
    """

    group: Any
    actors: list[Any]
    answers: list[Any]
    places: list[Place] = field(default_factory=list)


class RayEngine:
    """Starts the processes of a run's attempts.

    Args:
        sizes: with how many workers the run may go on, the most first.
        beside: processes that run beside the training, on the machine of the command.
    """

    def __init__(
        self, context: RunContext, sizes: Sequence[int], beside: Sequence[Cluster]
    ) -> None:
        self._context = context
        self._settings = context.experiment.launch.ray
        self._sizes = sizes
        self._beside = list(beside)
        self._placement: _Placement | None = None
        self._processes: dict[ProcessId, RayProcess] = {}
        self._last_size = sizes[0]
        self._last_error = ""

    def members(self) -> list[Cluster]:
        """Return the processes of the next attempt; none if the user stops meanwhile.

        Raises:
            ConfigError: a node does not see the files of the run.
            PlacementError: Ray has no places for them.
        """
        self.close()
        clear_temporaries(self._context.directory.path)  # between two attempts no process writes
        placement = self._place()
        if placement is None:
            return []
        if blind := sorted({place.node for place in placement.places if not place.sees_run}):
            raise ConfigError(*map(self._describe_blind, blind))
        addresses = [place.address for place in placement.places]
        process_ids = self._context.strategy.process_ids(len(addresses))
        clusters = (
            discovery.clusters_of(process_ids, addresses, RAY)
            if process_ids
            else [Cluster(source=RAY)]
        )
        self._processes = {
            cluster.process_id: RayProcess(actor, place.host)
            for cluster, actor, place in zip(
                clusters, placement.actors, placement.places, strict=True
            )
        }
        return [*clusters, *self._beside]

    def start(self, process_id: ProcessId) -> ManagedProcess:
        """Return a process that has its place, and no assignment yet."""
        return WorkerProcess() if process_id.is_beside else self._processes[process_id]

    def close(self) -> None:
        """Give the places back."""
        if self._placement:
            ray_connection.remove_actors(self._placement.group, self._placement.actors)
        self._placement = None
        self._processes = {}

    def _place(self) -> _Placement | None:
        """Wait for places, of an elastic run for fewer if need be; None: the user stops."""
        began = time.monotonic()
        timeout_secs = self._settings.timeout_secs
        rejoin_secs = min(self._settings.rejoin_secs, timeout_secs)
        is_elastic = len(self._sizes) > 1
        wait_secs = rejoin_secs if is_elastic else timeout_secs
        self._last_error = ""
        while True:
            for size in self._sizes:
                placement = self._try(size, wait_secs)
                if self._context.stop_requests.number:
                    return None
                if placement:
                    self._tell_size(size)
                    return placement
                wait_secs = _SMALLER_SECS
            if time.monotonic() - began >= timeout_secs or not is_elastic:
                break
        raise PlacementError(self._why_none())

    def _try(self, size: int, secs: float) -> _Placement | None:
        """Return the actors when all have started; None: not in `secs`, or the user stops."""
        import ray

        began = time.monotonic()
        is_told = False
        while True:
            placement = self._placement or self._ask(size)
            pause_secs = _POLL_SECS
            try:
                ready, waiting = ray.wait(placement.answers, num_returns=size, timeout=0)
                placement.places = ray.get(ready if waiting else placement.answers)
                if not waiting:
                    return placement
            except ray.exceptions.RayError as error:
                self._note_lost_start(error)
                pause_secs = _RETRY_SECS
            if self._context.stop_requests.wait(pause_secs):
                break
            waited_secs = time.monotonic() - began
            # Actors that have places may take longer to start.
            limit_secs = self._settings.timeout_secs if self._has_places() else secs
            if waited_secs >= max(secs, limit_secs):
                break
            if not is_told and waited_secs > _NOTICE_SECS:
                is_told = True
                if not self._has_places():
                    self._context.console.line(
                        f"waiting for Ray to place {self._request(size)}; the cluster has "
                        f"{ray_connection.describe_cluster()}"
                    )
        self.close()
        return None

    def _ask(self, size: int) -> _Placement:
        """Ask Ray for actors, and them for where they are."""
        arguments = self._what_nodes_must_see()
        group, actors = ray_connection.create_actors(self._settings, size)
        answers = [actor.find_place.remote(*arguments) for actor in actors]
        self._placement = _Placement(group, actors, answers)
        return self._placement

    def _note_lost_start(self, error: Exception) -> None:
        """Remember why an actor was lost before its process has started; give the places back."""
        self.close()
        is_first = not self._last_error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # Ray names the cause last.
        self._last_error = lines[-1][:300] if lines else type(error).__name__
        if is_first:
            self._context.console.line(
                f"warning: Ray has lost an actor while it started: {self._last_error}; trying again"
            )

    def _why_none(self) -> str:
        request = self._request(self._sizes[-1])
        within = f"{self._settings.timeout_secs:g} s (launch.ray.timeout_secs)"
        cluster = f"the cluster has {ray_connection.describe_cluster()}"
        more = "add nodes, or ask for less with launch.ray.cpus and launch.ray.gpus"
        if self._last_error:
            return (
                f"Ray has not started {request} in {within}; its last error: {self._last_error}; "
                f"{cluster}; repair the node that it comes from, {more}"
            )
        return f"Ray has no place for {request} after {within}; {cluster}; {more}"

    def _describe_blind(self, node: str) -> str:
        """Return what is wrong with a node that does not see the files of the run."""
        working_dir, run_dir, _ = self._what_nodes_must_see()
        address = run_address(self._context.experiment)
        mirrored = f", which mirrors {address}," if address else ""
        return (
            f"the Ray node {node} does not see the run directory {run_dir}{mirrored} or the "
            f"working directory {working_dir}; put them on a file system that every node mounts "
            "there"
        )

    def _has_places(self) -> bool:
        return self._placement is not None and ray_connection.has_places(self._placement.group)

    def _what_nodes_must_see(self) -> tuple[str, str, str]:
        run_dir = self._context.directory.path.absolute()
        return os.getcwd(), str(run_dir), lock_file(run_dir).read_text()

    def _request(self, size: int) -> str:
        return ray_connection.describe_request(self._settings, size)

    def _tell_size(self, size: int) -> None:
        if size != self._last_size:
            full = self._sizes[0]
            self._context.console.line(
                f"warning: going on with {size} of {full} workers"
                if size < full
                else f"going on with all {full} workers"
            )
        self._last_size = size
