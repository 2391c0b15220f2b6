"""Faults on request, to rehearse what a run does when a process dies, freezes or runs out of disk. No TensorFlow.

A process does to itself what is to happen to it. To those that run no steps and so know no moment, the chief does it: to its
supervisor by a signal, to others through its supervisor.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from trainer.channel import Channel
from trainer.cluster import Cluster, Task
from trainer.errors import ConfigError
from trainer.files import fsync_directory
from trainer.markers import committed, data_files
from trainer.rules import did_you_mean
from trainer.schema import Experiment, Fault
from trainer.signals import held

_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "freeze": signal.SIGSTOP}
_WORDS = {
    "kill": "is killed",
    "terminate": "is asked to stop",
    "freeze": "is frozen",
    "crash": "crashes",
    "slow": "rests {delay:g} s each time from",
    "full_disk": "finds the disk full",
    "corrupt": "loses a bit of its newest checkpoint, and is killed",
    "nan": "trains on features that are not a number",
}
_END_SECS = 10.0  # how long the end of a killed supervisor may take to end its worker


class Faults:
    """The faults of a run, as one of its processes rehearses them; each happens once, however often the run is started again.

    Attributes:
        stops: the steps after which something is to happen, to any process: no graph call may run past them.
        poisons: whether the features of a step are to be no numbers, in any process.
        poison: called with whether the next step's features are to be no numbers; the loop's.

    Args:
        faults: what is to be rehearsed, by name.
        run_dir: the run directory.
        place: which process this is.
        channel: tells the user.
        servers: the jobs that run no steps.
    """

    def __init__(self, faults: Mapping[str, Fault], run_dir: Path, place: Cluster, channel: Channel, servers: Collection[str]) -> None:
        self._directory, self._place, self._channel, self._servers = run_dir / "faults", place, channel, servers
        self._checkpoints = run_dir / "checkpoints"
        self._reached: Counter[str] = Counter()
        self._waiting = {name: fault for name, fault in faults.items() if self._is_mine(fault)}
        self._step = 0
        self._slow: set[str] = set()
        self._is_poisoned = False
        self.stops = frozenset(step for fault in faults.values() for step in _stops(fault))
        self.poisons = any(fault.what == "nan" for fault in faults.values())
        self.poison: Callable[[bool], None] = lambda on: None

    def reached(self, when: str, step: int = 0) -> None:
        """Does what is to happen now.

        Args:
            when: start, compile, evaluate, save or step.
            step: for `step`, how many have been made.

        Raises:
            OSError: the disk is to be full.
            RuntimeError: the user's code is to crash.
        """
        self._reached[when] += 1
        self._step = step if when == "step" else self._step
        number = step if when == "step" else self._reached[when]
        if when == "step" and self._is_poisoned:
            self._is_poisoned = False
            self.poison(False)
        for name, fault in list(self._waiting.items()):
            if fault.when == when and (when in ("start", "compile") or _due(fault, number)):
                self._happen(name, fault, _moment(fault, number))

    def _is_mine(self, fault: Fault) -> bool:
        if fault.who == "supervisor" or not _reaches(fault, self._servers):
            return self._place.is_chief
        return _is(fault.who, self._place)

    def _happen(self, name: str, fault: Fault, moment: str) -> None:
        if fault.what == "slow":
            if name not in self._slow:
                self._tell(name, fault, moment)
            self._slow.add(name)
            time.sleep(fault.delay_secs)
            return
        del self._waiting[name]
        if not self._record(name, fault, moment):
            return
        self._tell(name, fault, moment)
        if fault.what in _SIGNALS and fault.delay_secs:
            timer = threading.Timer(fault.delay_secs, self._send, (fault,))
            timer.daemon = True
            with held():  # the signal must not come to the timer's thread: see `signals.sigterm_kept`
                timer.start()
        else:
            self._act(fault, f"fault {name}: rehearsed {moment}")

    def _record(self, name: str, fault: Fault, moment: str) -> bool:
        """Writes down that it happens, before it does: nothing of this process may be left to do so afterwards."""
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(self._directory / f"{name}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            record = {"fault": name, "who": fault.who, "moment": moment, "step": self._step, "at": time.time()}
            os.write(file, json.dumps(record).encode())
            os.fsync(file)
        finally:
            os.close(file)
        fsync_directory(self._directory)
        return True

    def _tell(self, name: str, fault: Fault, moment: str) -> None:
        later = f", {fault.delay_secs:g} s later" if fault.delay_secs and fault.what != "slow" else ""
        self._channel.fault(f"fault {name}: {fault.who} {_WORDS[fault.what].format(delay=fault.delay_secs)} {moment}{later}")

    def _act(self, fault: Fault, error: str) -> None:
        if fault.what == "crash":
            raise RuntimeError(error)
        if fault.what == "full_disk":
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({error})")
        if fault.what == "nan":
            self._is_poisoned = True
            self.poison(True)
            return
        if fault.what == "corrupt":
            flip_bit(self._checkpoints)
        self._send(fault)

    def _send(self, fault: Fault) -> None:
        number = _SIGNALS.get(fault.what, signal.SIGKILL)
        if fault.who == "supervisor":
            os.kill(os.getppid(), number)
            if number == signal.SIGKILL:
                time.sleep(_END_SECS)  # this process ends with it, and is to do nothing more
        elif _is(fault.who, self._place):
            if fault.delay_secs:
                os.kill(os.getpid(), number)  # the timer's own thread takes no signal
            else:
                signal.raise_signal(number)  # in this thread, so that nothing is done between this line and the signal
        else:
            self._channel.inflict(fault.who, number)


def check(experiment: Experiment, tasks: Collection[Task], servers: Collection[str], *, declared: bool) -> None:
    """Refuses faults that could never happen: what is rehearsed must not pass for want of a fault.

    Args:
        experiment: the checked configuration.
        tasks: all processes of the run.
        servers: the jobs that run no steps.
        declared: whether each process has a supervisor of its own.

    Raises:
        ConfigError: with a line for each.
    """
    if experiment.mode != "train":
        return
    known, problems = ["chief", *([] if experiment.launch.inline else ["supervisor"]), *map(str, tasks)], []
    for name, fault in experiment.fault.items():
        path, given = f"fault.{name}", f"fault.{name}.who ({fault.who})"
        if fault.who not in known:
            choices = ", ".join(dict.fromkeys(known))
            problems.append(f"{given} is no process of this run; choose one of {choices}{did_you_mean(fault.who, known)}")
        elif fault.who == "supervisor" or not _reaches(fault, servers):
            if fault.what not in _SIGNALS:
                problems.append(f"{given} runs no steps; there {path}.what ({fault.what}) must be one of {', '.join(_SIGNALS)}")
            elif declared and fault.who != "supervisor":
                problems.append(f"{given} is out of the chief's reach in a declared cluster; rehearse it in one that is started here")
    if problems:
        raise ConfigError(*problems)


def flip_bit(directory: Path) -> None:
    """Flips a bit of the newest checkpoint's largest file."""
    if not (steps := committed(directory)):
        return
    file = max(data_files(directory, steps[-1]), key=lambda path: path.stat().st_size)
    with file.open("rb+") as opened:
        opened.seek(file.stat().st_size // 2)
        (byte,) = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))
        opened.flush()
        os.fsync(opened.fileno())


def _reaches(fault: Fault, servers: Collection[str]) -> bool:
    """Says whether the process itself knows the moment: one that runs no steps only that it starts, and the evaluator its evaluations."""
    job = fault.who.rpartition("-")[0]
    return job not in servers or fault.when == "start" or (job == "evaluator" and fault.when == "evaluate")


def _is(who: str, place: Cluster) -> bool:
    return who == str(place.task) or (who == "chief" and place.is_chief)


def _due(fault: Fault, number: int) -> bool:
    if fault.what == "slow":
        return number >= fault.at
    return number == (fault.at - 1 if fault.what == "nan" else fault.at)


def _stops(fault: Fault) -> tuple[int, ...]:
    if fault.when != "step":
        return ()
    return (fault.at - 1, fault.at) if fault.what == "nan" else (fault.at,)


def _moment(fault: Fault, number: int) -> str:
    if fault.when in ("start", "compile"):
        return "at the start" if fault.when == "start" else "while it compiles"
    if fault.when == "step":
        return f"in step {fault.at}" if fault.what == "nan" else f"at step {number}"
    return f"in {'evaluation' if fault.when == 'evaluate' else 'save'} {number}"
