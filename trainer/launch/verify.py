"""mode=verify: runs the experiment straight, and again with kills, and compares everything.

A run that is killed and continued must end as if nothing had happened. Whether it does depends on
the user's own code too: what the next step depends on and no checkpoint holds is lost with the
process. Each run has its own supervisor, which is killed too.
"""

from __future__ import annotations

import copy
import json
import queue
import random
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.cluster import environment
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.messages import Exit, Message, SignalReceived
from trainer.cluster.signals import STOP, forward_to
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment, Fault
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.files import read_json
from trainer.launch.command_process import CommandProcess
from trainer.launch.display import Console
from trainer.launch.run_context import Command, select_run
from trainer.runs import identity
from trainer.runs.checkpoint_marker import committed_steps, read_marker
from trainer.runs.ledger import is_clock_name
from trainer.runs.recorded_metrics import read_lines
from trainer.text import printable

_JSON_LINES = {"jsonl": {"_target_": "trainer.summaries.writers.jsonl.JsonLines"}}
"""The writer of metrics.jsonl, which is compared."""

_CLOCK = {
    "examples_per_sec", "input_wait_fraction", "train_secs", "goodput", "memory_mib",
    "gpu_memory_peak_mib",
}  # fmt: skip
"""The metrics that depend on the clock and on the process; so do those of workers' times."""

_TIME = (
    "something depends on the time or on randomness without a seed: tf.random, a clock, "
    "os.urandom, the order of threads or of a set"
)
_CALLBACK = (
    "a callback keeps state outside of tf.Variable attributes, and loses it when the process dies"
)
_UNSAVED = (
    "something that the next step depends on is in no checkpoint: random numbers of tf.random, "
    "Python or NumPy, or a variable or generator of the model's that is no attribute of a layer"
)
_METRICS = "something that the metrics depend on, and the weights do not, is in no checkpoint"


def run(command: Command) -> int:
    """Verify an experiment, in its own directory that is kept if something differs.

    Returns:
        The exit code: 0 equal, 1 not, 2 wrong input, 130 or 143 stopped.

    Raises:
        ConfigError: it cannot be verified here.
    """
    experiment = command.experiment
    strategy, cluster = select_run(experiment)
    if cluster.is_declared:
        raise ConfigError(
            f"mode (verify) starts its own processes, and {cluster.source} declares a cluster; "
            "verify without it"
        )
    seed = experiment.verify.seed
    if seed is None:
        seed = secrets.randbelow(2**31)
    process_ids = strategy.process_ids(None) or [Cluster().process_id]
    num_steps = _num_steps(experiment)
    kills = random_kills(list(map(str, process_ids)), num_steps, experiment.verify.kills, seed)
    name = f"{identity.run_name(experiment)}-verify-{seed}"
    runs_dir = Path(experiment.runs_dir).expanduser() / name
    if runs_dir.exists():
        shutil.rmtree(runs_dir)
    server = ForkServer.acquire()
    try:
        print(
            f"Verifying {num_steps} steps with {len(kills)} kills; "
            f"verify.seed={seed} repeats their moments.",
            flush=True,
        )
        check = _check_steps if strategy.asynchronous else _compare
        code = check(replace(command, server=server), runs_dir, kills)
    finally:
        server.release()
    if code == DONE:
        shutil.rmtree(runs_dir)
    elif runs_dir.exists():
        print(f"The runs are in {runs_dir}.", flush=True)
    return code


def random_kills(
    process_ids: Sequence[str], num_steps: int, count: int, seed: int
) -> dict[str, Fault]:
    """Return kills at random moments, spread over the run.

    The first is between two steps, so that steps are lost.
    """
    generator = random.Random(seed)
    kills = {}
    for number in range(count):
        phase = generator.choice(("step", "step", "evaluate", "save")) if number else "step"
        first = num_steps * number // count + 1
        last = max(num_steps * (number + 1) // count, 2) - 1
        at = (
            generator.randint(min(first, last), last)
            if phase == "step"
            else generator.randint(1, 2)
        )
        process = generator.choice(("supervisor", *process_ids))
        kills[f"kill_{number + 1}"] = Fault("kill", process, phase, at)
    return kills


def _num_steps(experiment: Experiment) -> int:
    return min(experiment.verify.steps, experiment.train.steps or experiment.verify.steps)


def shortened(
    experiment: Experiment, name: str, runs_dir: Path, kills: Mapping[str, Fault]
) -> Experiment:
    """Return an experiment as it is checked: short, evaluated and saved often, with kills."""
    short = copy.deepcopy(experiment)
    num_steps = _num_steps(short)
    short.mode = "train"
    short.name = name
    short.runs_dir = str(runs_dir)
    short.resume = "auto"
    short.resume_allow = []
    short.train.steps = num_steps
    short.train.epochs = None
    short.launch.inline = False
    short.fault = dict(kills)
    for section, times in ((short.evaluate, 8), (short.checkpoint, 6), (short.summary, 20)):
        every = section.every_steps if isinstance(section.every_steps, int) else num_steps
        section.every_steps = min(every, max(1, num_steps // times))
    if short.checkpoint.async_write is None:
        # Else it depends on the disk which checkpoint a kill of the supervisor leaves.
        short.checkpoint.async_write = False
    short.writers = dict(_JSON_LINES)  # trackers are not to show these runs
    short.restart.max_restarts += 2 * len(kills)
    short.restart.backoff_secs = 0.0
    return short


def _train(
    command: Command, runs_dir: Path, name: str, kills: Mapping[str, Fault]
) -> tuple[int, Outcome | None]:
    """Train to the end, again after a kill of the supervisor.

    Returns:
        The exit code, and the outcome if it finished.
    """
    print(f"--- {name}", flush=True)
    short = replace(command, experiment=shortened(command.experiment, name, runs_dir, kills))
    code = -signal.SIGKILL
    for _ in range(len(kills) + 1):
        if code == -signal.SIGKILL:  # of the supervisor; the same command continues
            code = _run_command(short, runs_dir)
    if code == DONE:
        (run_dir,) = runs_dir.glob(f"{name}-*")
        return code, read(run_dir)
    if kills:
        problem = "the experiment with kills did not finish; its straight run did"
        print(f"error: {problem}", file=sys.stderr)
    return (code if code > 0 else CRASHED), None


def _run_command(command: Command, runs_dir: Path) -> int:
    variables = environment.worker_environment()
    environment.keep_from_trackers(variables, runs_dir)
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    console = Console()
    process = CommandProcess(command, variables, messages.put)
    try:
        with forward_to(lambda number: process.send(SignalReceived(number)), STOP):
            while True:
                match messages.get():
                    case Exit(code, output):
                        if code == CRASHED and output:
                            console.error(output)
                        return code
                    case message:
                        console.show(message, runs_dir)
    finally:
        process.kill()
        console.close()


def _compare(command: Command, runs_dir: Path, kills: Mapping[str, Fault]) -> int:
    code, straight = _train(command, runs_dir, "straight", {})
    if straight is None:
        return code
    code, killed = _train(command, runs_dir, "killed", kills)
    if killed is None:
        return code
    lines = differences(straight, killed)
    if not lines:
        print(f"Equal: {killed}", flush=True)
        return DONE
    code, again = _train(command, runs_dir, "again", {})
    if again is None:
        return code
    unrepeatable = differences(straight, again)
    cause = likely_cause(straight, again if unrepeatable else killed, bool(unrepeatable))
    for line in [*(unrepeatable or lines), f"likely cause: {cause}"]:
        print(f"error: {printable(line)}", file=sys.stderr)
    return CRASHED


def _check_steps(command: Command, runs_dir: Path, kills: Mapping[str, Fault]) -> int:
    """Train with kills a run that does not repeat to the bit, and count its steps."""
    code, killed = _train(command, runs_dir, "killed", kills)
    if killed is None:
        return code
    num_steps = _num_steps(command.experiment)
    if killed.step == num_steps:
        print(
            f"Finished with exactly {num_steps} steps; the other results of a run of this strategy "
            "depend on who was first.",
            flush=True,
        )
        return DONE
    print(f"error: it finished with {killed.step} steps instead of {num_steps}", file=sys.stderr)
    return CRASHED


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        lines: the metrics lines without what depends on the clock.
        variables: a digest of each variable of the last checkpoint.
    """

    result: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    kills: Sequence[tuple[int, str]] = ()

    @property
    def step(self) -> int:
        return int(self.result["step"])

    def __str__(self) -> str:
        return (
            f"step {self.step}, {len(self.variables)} variables, {len(self.lines)} metrics lines, "
            "test metrics and best checkpoint"
        )


def read(run_dir: Path) -> Outcome:
    """Read the outcome of a finished run."""
    result = read_json(run_dir / "result.json")
    lines, _ = read_lines(run_dir / "metrics.jsonl")
    lines = [
        {
            name: value
            for name, value in line.items()
            if name not in _CLOCK and not is_clock_name(name)
        }
        for line in lines
    ]
    directory = run_dir / "checkpoints"
    records = sorted(
        (json.loads(file.read_text()) for file in (run_dir / "faults").glob("*.json")),
        key=lambda record: record["at"],
    )
    return Outcome(
        {name: result.get(name) for name in ("step", "metrics", "validation", "best")},
        lines,
        read_marker(directory, committed_steps(directory)[-1])["variables"],
        [
            (record["step"], f"{record['fault']} ({record['who']} {record['moment']})")
            for record in records
        ],
    )


def differences(straight: Outcome, other: Outcome) -> list[str]:
    """Return a line for each part in which two runs differ; none if they are equal."""
    lines = []
    for name, value in straight.result.items():
        if _text(value) != _text(other.result[name]):
            lines.append(f"result: {name} is {_text(other.result[name])} instead of {_text(value)}")
    if (first := _first_step(straight, other)) is not None:
        lines.append(
            f"metrics: the first line that differs is that of step {first}{_after(other, first)}"
        )
    if names := _variables(straight, other):
        lines.append(
            f"variables: {len(names)} of {len(straight.variables)} differ after the last step, "
            f"the first is {names[0]}"
        )
    return lines


def likely_cause(straight: Outcome, other: Outcome, unrepeatable: bool) -> str:
    """Return the likely cause of a difference.

    Args:
        unrepeatable: whether that was without kills, too.
    """
    if unrepeatable:
        return f"it does not repeat even without a kill: {_TIME}; on a GPU, add deterministic=true"
    names = _variables(straight, other)
    if straight.step != other.step or (
        names and all(name.startswith("callbacks/") for name in names)
    ):
        return _CALLBACK
    return _UNSAVED if names else _METRICS


def _variables(straight: Outcome, other: Outcome) -> list[str]:
    return sorted(
        name
        for name in {*straight.variables, *other.variables}
        if straight.variables.get(name) != other.variables.get(name)
    )


def _first_step(straight: Outcome, other: Outcome) -> int | None:
    """Return the step of the first metrics line in which two runs differ; None: they do not."""
    for line, other_line in zip(straight.lines, other.lines, strict=False):
        if _text(line) != _text(other_line):
            return int(min(line["step"], other_line["step"]))
    shorter, longer = sorted((straight.lines, other.lines), key=len)
    return int(longer[len(shorter)]["step"]) if len(longer) > len(shorter) else None


def _after(other: Outcome, step: int) -> str:
    before = [name for killed, name in other.kills if killed <= step] or [
        name for _, name in other.kills[:1]
    ]
    return f", after {before[-1]}" if before else ""


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # equal where both are NaN, too
