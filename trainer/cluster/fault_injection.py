"""Fault injection: a process dies, freezes, or runs out of disk. No TensorFlow.

A process injects its own faults. Those of processes that count no steps, and so cannot time them,
are injected by the chief: into its supervisor by a signal, into others through its supervisor.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from trainer.cluster.messages import Channel, FaultNotice, SignalRequest
from trainer.cluster.signals import blocked
from trainer.cluster.spec import EVALUATOR, Cluster, ProcessId
from trainer.config.faults import ACTIONS, action_of
from trainer.config.schema import Experiment, Fault
from trainer.errors import ConfigError
from trainer.files import fsync_directory
from trainer.runs.checkpoint_marker import committed_steps, data_files
from trainer.text import did_you_mean

_log = logging.getLogger(__name__)
_END_SECS = 10.0  # how long a worker may outlive its killed supervisor


class Faults:
    """Injects the faults of a run into one of its processes.

    Each happens once, however often the run is started again.

    Attributes:
        stops: the steps after which a fault happens, in any process: no graph call may run past
            them.
        changes_steps: whether a step is to have a loss of NaN, or to rest, in any process.
    """

    def __init__(
        self,
        faults: Mapping[str, Fault],
        run_dir: Path,
        cluster: Cluster,
        channel: Channel,
        service_jobs: Collection[str],
    ) -> None:
        self._run_dir = run_dir
        self._directory = run_dir / "faults"
        self._cluster = cluster
        self._channel = channel
        self._service_jobs = service_jobs
        self._counts: Counter[str] = Counter()  # of moments reached, by phase
        self._pending = {name: fault for name, fault in faults.items() if self._is_mine(fault)}
        self._step = 0
        self._slow: set[str] = set()
        self._steps_rest = False
        self._nan_switches: list[Callable[[bool], None]] = []
        self._is_nan = False
        self._flip_bit: Callable[[], None] = lambda: None
        self.stops = frozenset(step for fault in faults.values() for step in _stops(fault))
        self.changes_steps = any(
            fault.kind == "nan" or _rests_in_step(fault) for fault in faults.values()
        )

    def on_nan(self, switch: Callable[[bool], None]) -> None:
        """Have `switch` called: with True before a step whose loss is to be NaN, False after it."""
        self._nan_switches.append(switch)

    def on_flip_bit(self, flip: Callable[[], None]) -> None:
        """Have `flip` called when a bit of a variable is to be flipped."""
        self._flip_bit = flip

    def take_step_delays(self) -> list[Fault]:
        """Return the delays of steps that this process injects; the caller puts them into the step.

        Without this call the process sleeps after each call of `reached` with `step`.
        """
        self._steps_rest = True
        return list(filter(_rests_in_step, self._pending.values()))

    def reached(self, phase: str, step: int = 0) -> None:
        """Inject the faults that are due now.

        Raises:
            OSError: the disk is to be full.
            RuntimeError: the user's code is to crash.
        """
        self._counts[phase] += 1
        self._step = step if phase == "step" else self._step
        number = step if phase == "step" else self._counts[phase]
        if phase == "step" and self._is_nan:
            self._switch_nan(False)
        for name, fault in list(self._pending.items()):
            if fault.phase == phase and (phase in ("start", "compile") or _due(fault, number)):
                self._inject(name, fault, _moment(fault, number))

    def _is_mine(self, fault: Fault) -> bool:
        if fault.process == "supervisor" or not _knows_when(fault, self._service_jobs):
            return self._cluster.is_chief
        return _is(fault.process, self._cluster)

    def _switch_nan(self, is_nan: bool) -> None:
        self._is_nan = is_nan
        for switch in self._nan_switches:
            switch(is_nan)

    def _inject(self, name: str, fault: Fault, moment: str) -> None:
        if fault.kind == "slow":
            if name not in self._slow:
                self._report(name, fault, moment)
            self._slow.add(name)
            if not (self._steps_rest and _rests_in_step(fault)):
                time.sleep(fault.delay_secs)
            return
        del self._pending[name]
        if not self._record(name, fault, moment):
            return
        self._report(name, fault, moment)
        if action_of(fault.kind).signal is not None and fault.delay_secs:
            timer = threading.Timer(fault.delay_secs, self._send, (fault,))
            timer.daemon = True
            # The signal must not reach the timer's thread: see `signals.preserve_sigterm`.
            with blocked():
                timer.start()
        else:
            self._act(name, fault, f"fault {name}: injected {moment}")

    def _record(self, name: str, fault: Fault, moment: str) -> bool:
        """Record a fault before it happens: afterward this process may be gone.

        Returns:
            Whether it is to happen; False if an earlier attempt has recorded it.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        record = {
            "fault": name,
            "who": fault.process,
            "moment": moment,
            "step": self._step,
            "at": time.time(),
        }
        try:
            with open(self._directory / f"{name}.json", "x", encoding="utf-8") as file:
                json.dump(record, file)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        fsync_directory(self._directory)
        return True

    def _report(self, name: str, fault: Fault, moment: str) -> None:
        is_later = fault.delay_secs and fault.kind != "slow"
        later = f", {fault.delay_secs:g} s later" if is_later else ""
        target = "" if isinstance(fault.action, str) else fault.action["_target_"]
        effect = action_of(fault.kind).effect.format(delay=fault.delay_secs, target=target)
        text = f"fault {name}: {fault.process} {effect} {moment}{later}"
        _log.info(text)
        self._channel.send(FaultNotice(text))

    def _act(self, name: str, fault: Fault, error: str) -> None:
        match fault.kind:
            case "own":
                from trainer.config.instantiate import instantiate

                assert isinstance(fault.action, Mapping)
                instantiate(fault.action, f"fault.{name}.action", self._run_dir, self._step)
            case "crash":
                raise RuntimeError(error)
            case "full_disk":
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({error})")
            case "nan":
                self._switch_nan(True)
            case "flip_bit":
                self._flip_bit()
            case kind:
                if kind == "corrupt":
                    _flip_bit(self._run_dir / "checkpoints")
                self._send(fault)

    def _send(self, fault: Fault) -> None:
        number = action_of(fault.kind).signal or signal.SIGKILL
        if not _is(fault.process, self._cluster):
            self._channel.send(SignalRequest(fault.process, number))
            if fault.process == "supervisor" and number == signal.SIGKILL:
                time.sleep(_END_SECS)  # this process ends with it, and must do nothing more
        elif fault.delay_secs:
            os.kill(os.getpid(), number)  # the timer's own thread takes no signal
        else:
            # In this thread, so that nothing is done between this line and the signal.
            signal.raise_signal(number)


def _flip_bit(directory: Path) -> None:
    if not (steps := committed_steps(directory)):
        return
    file = max(data_files(directory, steps[-1]), key=lambda path: path.stat().st_size)
    with file.open("rb+") as stream:
        stream.seek(file.stat().st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
        stream.flush()
        os.fsync(stream.fileno())


def _knows_when(fault: Fault, service_jobs: Collection[str]) -> bool:
    """Return whether the process itself can time the fault.

    One that counts no steps can time its start, and the evaluator its evaluations.
    """
    job = fault.process.rpartition("-")[0]
    return (
        job not in service_jobs
        or fault.phase == "start"
        or (job == EVALUATOR and fault.phase == "evaluate")
    )


def _is(process: str, cluster: Cluster) -> bool:
    return process == str(cluster.process_id) or (process == "chief" and cluster.is_chief)


def _rests_in_step(fault: Fault) -> bool:
    return fault.kind == "slow" and fault.phase == "step"


def _due(fault: Fault, number: int) -> bool:
    if fault.kind == "slow":
        return number >= fault.at
    return number == (fault.at - 1 if fault.kind == "nan" else fault.at)


def _stops(fault: Fault) -> tuple[int, ...]:
    if fault.phase != "step":
        return ()
    return (fault.at - 1, fault.at) if fault.kind == "nan" else (fault.at,)


def _moment(fault: Fault, number: int) -> str:
    if fault.phase in ("start", "compile"):
        return "at the start" if fault.phase == "start" else "while it compiles"
    if fault.phase == "step":
        return f"in step {fault.at}" if fault.kind == "nan" else f"at step {number}"
    return f"in {'evaluation' if fault.phase == 'evaluate' else 'save'} {number}"


def check(
    experiment: Experiment,
    process_ids: Collection[ProcessId],
    service_jobs: Collection[str],
    *,
    declared: bool,
) -> None:
    """Refuse faults that could never happen: a test must not pass because its fault is missing.

    Raises:
        ConfigError: with a line for each.
    """
    if not experiment.trains:
        return
    supervisor = [] if experiment.launch.inline else ["supervisor"]
    processes = ["chief", *supervisor, *map(str, process_ids)]
    problems = []
    for name, fault in (experiment.fault or {}).items():
        key = f"fault.{name}.process ({fault.process})"
        if fault.process not in processes:
            choices = ", ".join(dict.fromkeys(processes))
            hint = did_you_mean(fault.process, processes)
            problems.append(f"{key} is no process of this run; choose one of {choices}{hint}")
        elif problem := _problem(fault, service_jobs, declared=declared):
            action = f"fault.{name}.action ({fault.kind})"
            problems.append(problem.format(key=key, action=action))
    if problems:
        raise ConfigError(*problems)


def _problem(fault: Fault, service_jobs: Collection[str], *, declared: bool) -> str | None:
    """Return why a fault could never happen, with `{key}` and `{action}` for its keys."""
    is_worker = fault.process.startswith("worker-")
    if _rests_in_step(fault):
        is_chief = fault.process == "chief"
        if not is_worker and (not is_chief or "worker" in service_jobs):
            why = "schedules steps" if fault.process.startswith("chief") else "runs no steps"
            return f"{{key}} {why}, so it cannot be slow in them; choose a worker such as worker-0"
    elif fault.process == "supervisor" or not _knows_when(fault, service_jobs):
        if action_of(fault.kind).signal is None:  # no process can inject it into another
            why = "runs no steps"
            if is_worker:
                why = "runs steps that the chief schedules, without a training loop"
            signals = ", ".join(name for name, action in ACTIONS.items() if action.signal)
            return f"{{key}} {why}; there {{action}} must be one of {signals}"
        if declared and fault.process != "supervisor":
            return (
                "{key} is out of the chief's reach in a declared cluster; inject it in one that "
                "is started here"
            )
    return None
