"""launch=ray: the processes of a run on the nodes of a Ray cluster.

The supervisor stays in the command. Each attempt gets a placement group with an actor for every
process. The actor does not handle attempts and restarts: it starts the same worker as a local run,
forwards requests, and returns messages. When it is killed, or the command that made it ends,
the worker loses its socket and is ended too.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trainer.cluster import discovery, environment, ports
from trainer.cluster.messages import Exit, Line, Message
from trainer.cluster.spec import RAY, Cluster, ProcessId
from trainer.config import loading
from trainer.config.batch_sizes import divides
from trainer.config.schema import Experiment, Ray
from trainer.errors import CRASHED, WRONG_INPUT, ConfigError
from trainer.files import Lock, clear_temporaries
from trainer.launch.processes import Messages, WorkerProcess
from trainer.launch.run_context import RunContext
from trainer.optional_packages import import_extra
from trainer.runs.directory import RunDirectory, lock_file
from trainer.runs.identity import run_address
from trainer.runs.state_memory import StateMemory

_STARTS = 3  # of a Ray of this machine, to which Ray gives 30 s: a busy machine needs longer
_TIMED_OUT = "timed out during startup"
_OPEN_WARNING = (
    "warning: this Ray cluster takes commands from anyone who reaches its ports; "
    "start it with RAY_AUTH_MODE=token"
)
_POLL_SECS = 0.5
_RETRY_SECS = 2.0  # between two tries to start: Ray may learn late that a node is lost
_NOTICE_SECS = 10.0  # how long to wait for places before the user is told
_SMALLER_SECS = 10.0  # how long Ray may take to place fewer processes than requested
_RECEIVE_SECS = 5.0  # how long a call may wait for a message
_LOCK_SECS = 30.0  # how long the process of a killed command may need to end
_ANSWER_SECS = 10.0  # how long a living actor may take to answer


@contextmanager
def connected(settings: Ray, warn: Callable[[str], None]) -> Iterator[None]:
    """Connect to Ray for the block, or start it here; raise a ConfigError if that fails."""
    ray = import_extra("ray", "ray", "launch.engine (ray)")
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
        if environment.current().get("RAY_AUTH_MODE", "").lower() != "token":
            warn(_OPEN_WARNING)
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


class PlacementError(Exception):
    """The processes cannot be placed."""

    def __init__(self, code: int, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.code, self.problems = code, problems


@dataclass
class _Placement:
    group: Any
    actors: list[Any]
    answers: list[Any]
    places: list[Place] = field(default_factory=list)


class RayEngine:
    """Starts the processes of a run's attempts; use it in `connected`.

    Args:
        beside: processes that run next to the training, on the machine of the command.
    """

    def __init__(self, context: RunContext, beside: Sequence[Cluster]) -> None:
        self._context = context
        self._settings = context.experiment.launch.ray
        full = len(context.strategy.process_ids(None)) or 1
        least = self._settings.min_workers or full
        batch = context.experiment.batch
        fewer = (size for size in range(full - 1, least - 1, -1) if divides(batch, size))
        self._sizes = [full, *fewer]  # with how many workers the run may continue
        self._beside = list(beside)
        self._placement: _Placement | None = None
        self._processes: dict[ProcessId, RayProcess] = {}
        self._last_size = full
        self._last_error = ""

    def members(self) -> list[Cluster]:
        """Return the processes of the next attempt; none if the user stops meanwhile.

        Raises:
            PlacementError: Ray has no places for them, or a node does not see the run's files.
        """
        self.close()
        clear_temporaries(self._context.directory.path)  # between two attempts no process writes
        placement = self._place()
        if placement is None:
            return []
        if blind := sorted({place.node for place in placement.places if not place.sees_run}):
            raise PlacementError(WRONG_INPUT, *map(self._describe_blind, blind))
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
            remove_actors(self._placement.group, self._placement.actors)
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
        raise PlacementError(CRASHED, self._why_none())

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
                        f"{describe_cluster()}"
                    )
        self.close()
        return None

    def _ask(self, size: int) -> _Placement:
        """Ask Ray for actors, and them for where they are."""
        arguments = self._what_nodes_must_see()
        group, actors = create_actors(self._settings, size)
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
        cluster = f"the cluster has {describe_cluster()}"
        more = "add nodes, or request less with launch.ray.cpus and launch.ray.gpus"
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
        return self._placement is not None and has_places(self._placement.group)

    def _what_nodes_must_see(self) -> tuple[str, str, str]:
        run_dir = self._context.directory.path.absolute()
        return os.getcwd(), str(run_dir), lock_file(run_dir).read_text()

    def _request(self, size: int) -> str:
        """Return what is requested: `2 processes with 1 CPU each (spread)`."""
        noun = "process" if size == 1 else "processes"
        each = _amounts({"CPU": self._settings.cpus, "GPU": self._settings.gpus})
        return f"{size} {noun} with {each} each ({self._settings.placement})"

    def _tell_size(self, size: int) -> None:
        if size != self._last_size:
            full = self._sizes[0]
            self._context.console.line(
                f"warning: continuing with {size} of {full} workers"
                if size < full
                else f"continuing with all {full} workers"
            )
        self._last_size = size


def create_actors(settings: Ray, count: int) -> tuple[Any, list[Any]]:
    """Request places and an actor in each, which start together; return the group and handles."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

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

    # Its method `wait` returns False after no time even if there are.
    return bool(placement_group_table(group)["state"] == "CREATED")


def remove_actors(group: Any, actors: list[Any]) -> None:
    """Kill actors, and give their places back."""
    import ray
    from ray.util.placement_group import remove_placement_group

    for actor in actors:
        ray.kill(actor)
    remove_placement_group(group)


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


@dataclass(frozen=True)
class Place:
    """Where an actor runs.

    Attributes:
        address: host:port for the process, free at this moment; an IPv6 host in brackets.
    """

    address: str
    host: str
    sees_run: bool = True

    @property
    def node(self) -> str:
        return self.address.rpartition(":")[0]


class RayHost:
    """Runs one process."""

    def __init__(self) -> None:
        self._messages: Messages = queue.SimpleQueue()
        self._process: WorkerProcess | None = None

    def find_place(self, working_dir: str, run_dir: str, holder: str) -> Place:
        """Return where the process will be, after checking that it sees the files of the run.

        Args:
            holder: what the lock of the run directory holds, as the command sees it.
        """
        node_ip = _own_ip()
        host = f"[{node_ip}]" if ":" in node_ip else node_ip
        try:
            os.chdir(working_dir)
            sees_run = lock_file(Path(run_dir)).read_text() == holder
        except OSError:
            sees_run = False
        return Place(f"{host}:{ports.free_port()}", socket.gethostname(), sees_run)

    def start(self, run_dir: str, experiment: Mapping[str, Any], member: Mapping[str, Any]) -> None:
        """Start the process, or raise a LockedError if that of an earlier command lives."""
        path = Path(run_dir)
        cluster = Cluster.from_dict(member)
        # The command holds the lock of the run; on its death the process of this node has to end
        # before the next command starts its own.
        lock = Lock.acquire(path / f".{cluster.process_id}.lock", _LOCK_SECS)
        directory = RunDirectory(path, run_dir, is_new=False, lock=lock, created=[], old_run=None)
        self._process = WorkerProcess()
        self._process.assign(directory, loading.restore(experiment), cluster, self._messages)
        lock.close()

    def receive(self) -> list[Message]:
        """Return the messages since the last call; wait a while for one."""
        received: list[tuple[ProcessId, Message] | None] = []
        with suppress(queue.Empty):
            received.append(self._messages.get(timeout=_RECEIVE_SECS))
            while True:
                received.append(self._messages.get_nowait())
        return [item[1] for item in received if item]

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `WorkerProcess`, if it was started; return what that returns."""
        return getattr(self._process, method)(*arguments) if self._process else None


def _own_ip() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


class RayProcess:
    """A process that an actor, the handle of a `RayHost`, runs."""

    def __init__(self, actor: Any, host: str | None) -> None:
        self.host = host
        self._actor = actor
        self._follower: threading.Thread | None = None

    def assign(
        self,
        directory: RunDirectory,
        experiment: Experiment,
        member: Cluster,
        messages: Messages,
        memories: Mapping[ProcessId, StateMemory] | None = None,
        *,
        is_standby: bool = False,
    ) -> None:
        """Send the process its assignment, see `WorkerProcess.assign`; it has no memory."""

        def put(message: Message) -> None:
            messages.put((member.process_id, message))

        run_dir = str(directory.path.absolute())
        started = self._actor.start.remote(run_dir, asdict(experiment), member.to_dict())
        self._follower = threading.Thread(target=self._follow, args=(started, put), daemon=True)
        self._follower.start()

    def send(self, message: Message) -> None:
        self._actor.call.remote("send", message)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._actor.call.remote("signal", int(number))

    def has_ended(self) -> bool:
        return self._follower is not None and not self._follower.is_alive()

    def resident_bytes(self) -> int:
        """Return 0: the process is on another host."""
        return 0

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP); False if its actor does not answer."""
        return bool(self._answer("is_stopped"))

    def kill(self, secs: float = _ANSWER_SECS) -> str:
        """Kill the process and its actor, see `Child.kill`."""
        import ray

        left = self._answer("kill", min(secs, _ANSWER_SECS) / 2, secs=max(1.0, secs))
        ray.kill(self._actor)
        if self._follower:
            self._follower.join(secs)
        return f"{left} on {self.host}" if left else ""

    def _answer(self, method: str, *arguments: float, secs: float = _ANSWER_SECS) -> Any:
        """Return what a method of the process returns; None if its actor is lost."""
        import ray

        with suppress(ray.exceptions.RayError):
            return ray.get(self._actor.call.remote(method, *arguments), timeout=secs)
        return None

    def _follow(self, started: Any, put: Any) -> None:
        """Pass on the messages of the process; the last is `Exit`, also if the actor is lost."""
        import ray

        try:
            ray.get(started)
            while True:
                for message in ray.get(self._actor.receive.remote()):
                    put(message)
                    if isinstance(message, Exit):
                        return
        except ray.exceptions.RayTaskError as error:
            put(Line(f"warning: its Ray actor failed: {error.cause}"))
        except ray.exceptions.RayError as error:
            reason = str(error).partition("\n")[0]
            put(Line(f"warning: Ray has lost the actor or its node: {reason}"))
        put(Exit(-signal.SIGKILL))


ManagedProcess: TypeAlias = WorkerProcess | RayProcess
"""One process of a run: on this machine, or on a node of a Ray cluster."""
