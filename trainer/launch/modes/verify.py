"""mode=verify: runs the experiment straight, and again with kills, and compares everything.

A run that is killed and continued must end as if nothing had happened. Whether it does depends on
the user's own code too: what the next step depends on and no checkpoint holds is lost with the
process. Each run has a supervisor of its own, which is killed as well.
"""

from __future__ import annotations

import copy
import queue
import random
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.cluster import environment
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.messages import Exit, Message, SignalReceived
from trainer.cluster.signals import STOP, forward_to
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment, Fault
from trainer.errors import CRASHED, DONE, ConfigError
from trainer.launch.display import Console
from trainer.launch.modes.run_comparison import Outcome, differences, likely_cause, read
from trainer.launch.processes.command_process import CommandProcess
from trainer.launch.run_context import Command, select_run
from trainer.runs import identity
from trainer.text import printable


def run(command: Command) -> int:
    """Verify an experiment, in a directory of its own that is kept if something differs.

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
        runs = Runs(command, runs_dir, server)
        if strategy.asynchronous:
            code = _check_steps(runs, kills, num_steps)
        else:
            code = _compare(runs, kills)
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


_JSON_LINES = {"jsonl": {"_target_": "trainer.summaries.writers.jsonl.JsonLines"}}
"""The writer of metrics.jsonl, which is compared."""


def _num_steps(experiment: Experiment) -> int:
    return min(experiment.verify.steps, experiment.train.steps or experiment.verify.steps)


@dataclass(frozen=True)
class Runs:
    """The runs of one check."""

    command: Command
    runs_dir: Path
    server: ForkServer

    def shortened(self, name: str, kills: Mapping[str, Fault]) -> Experiment:
        """Return the experiment as it is checked: short, evaluated and saved often, with kills."""
        short = copy.deepcopy(self.command.experiment)
        num_steps = _num_steps(short)
        short.mode = "train"
        short.name = name
        short.runs_dir = str(self.runs_dir)
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

    def train(self, experiment: Experiment) -> tuple[int, Outcome | None]:
        """Train to the end, again after a kill of the supervisor.

        Args:
            experiment: what `shortened` has returned.

        Returns:
            The exit code, and the outcome if it finished.
        """
        code = -signal.SIGKILL
        for _ in range(len(experiment.fault or {}) + 1):
            if code == -signal.SIGKILL:  # of the supervisor; the same command continues
                code = self._run_command(experiment)
        if code != DONE:
            return (code if code > 0 else CRASHED), None
        (run_dir,) = self.runs_dir.glob(f"{experiment.name}-*")
        return code, read(run_dir)

    def _run_command(self, experiment: Experiment) -> int:
        """Run a command to its end, in a process and a session of its own; forward signals."""
        variables = environment.worker_environment()
        environment.keep_from_trackers(variables, self.runs_dir)
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        console = Console()
        process = CommandProcess(
            replace(self.command, experiment=experiment, server=self.server),
            variables,
            messages.put,
        )
        try:
            with forward_to(lambda number: process.send(SignalReceived(number)), STOP):
                while True:
                    match messages.get():
                        case Exit(code, output):
                            if code == CRASHED and output:
                                console.error(output)
                            return code
                        case message:
                            console.show(message, self.runs_dir)
        finally:
            process.kill()
            console.close()


def _train(runs: Runs, name: str, kills: Mapping[str, Fault]) -> tuple[int, Outcome | None]:
    print(f"--- {name}", flush=True)
    code, outcome = runs.train(runs.shortened(name, kills))
    if outcome is None and kills:
        print(
            "error: the experiment with kills did not finish; its straight run did",
            file=sys.stderr,
        )
    return code, outcome


def _compare(runs: Runs, kills: Mapping[str, Fault]) -> int:
    """Train with and without kills, and print the differences; return the exit code."""
    code, straight = _train(runs, "straight", {})
    if straight is None:
        return code
    code, killed = _train(runs, "killed", kills)
    if killed is None:
        return code
    lines = differences(straight, killed)
    if not lines:
        print(f"Equal: {killed}", flush=True)
        return DONE
    code, again = _train(runs, "again", {})
    if again is None:
        return code
    if unrepeatable := differences(straight, again):
        lines = [*unrepeatable, f"likely cause: {likely_cause(straight, again, True)}"]
    else:
        lines = [*lines, f"likely cause: {likely_cause(straight, killed, False)}"]
    for line in lines:
        print(f"error: {printable(line)}", file=sys.stderr)
    return CRASHED


def _check_steps(runs: Runs, kills: Mapping[str, Fault], num_steps: int) -> int:
    """Train with kills a run that does not repeat to the bit, and count its steps."""
    code, killed = _train(runs, "killed", kills)
    if killed is None:
        return code
    if killed.step == num_steps:
        print(
            f"Finished with exactly {num_steps} steps; what else a run of this strategy comes to "
            "depends on who was first.",
            flush=True,
        )
        return DONE
    print(f"error: it finished with {killed.step} steps instead of {num_steps}", file=sys.stderr)
    return CRASHED
