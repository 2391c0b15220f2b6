"""mode=verify: the experiment straight, and again with kills, and everything compared. No TensorFlow.

A run that is killed and continued must end as if nothing had happened. Whether it does depends on the user's own code too: what the
next step depends on and no checkpoint holds is lost with the process. Each run has a supervisor of its own, which is killed as well.
"""

from __future__ import annotations

import copy
import json
import random
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer import build, cluster, config, identity
from trainer.cluster import Cluster
from trainer.differences import Outcome, causes, differences, read
from trainer.errors import ConfigError
from trainer.exitcodes import CRASHED, DONE
from trainer.schema import Experiment, Fault


def run(experiment: Experiment, overrides: list[str], config_dir: str | None) -> int:
    """Verifies an experiment, in a directory of its own that stays if something differs.

    Args:
        experiment: the checked configuration.
        overrides: the command line's, for the record.
        config_dir: the user's own folder of choices, likewise.

    Returns:
        The exit code: 0 equal, 1 not, 2 wrong input, 130 or 143 stopped.

    Raises:
        ConfigError: it cannot be verified here.
    """
    strategy = build.strategy_of(experiment)
    if strategy.joins and (declared := cluster.declared(strategy.tasks)):
        raise ConfigError(f"mode (verify) starts its own processes, and {declared.source} declares a cluster; verify without it")
    strategy, _ = strategy.resolve(Cluster())
    seed = experiment.verify.seed if experiment.verify.seed is not None else secrets.randbelow(2**31)
    tasks = [str(task) for task in strategy.tasks(None) or [Cluster().task]]
    kills = moments(tasks, _steps(experiment), experiment.verify.kills, seed)
    runs_dir = Path(experiment.runs_dir).expanduser() / f"{identity.run_name(experiment)}-verify-{seed}"
    if runs_dir.exists():
        shutil.rmtree(runs_dir)  # of the same moments, which are about to be repeated
    verification = Verification(experiment, overrides, config_dir, runs_dir, repeats=not strategy.asynchronous)
    print(f"Verifying {_steps(experiment)} steps with {len(kills)} kills; verify.seed={seed} repeats their moments.", flush=True)
    code = verification.verify(kills)
    if code == DONE:
        shutil.rmtree(runs_dir)
    elif runs_dir.exists():
        print(f"The runs are in {runs_dir}.", flush=True)
    return code


def moments(tasks: Sequence[str], steps: int, count: int, seed: int) -> dict[str, Fault]:
    """Gives kills at random moments, spread over the run; the first one between two steps, so that something is lost."""
    chosen = random.Random(seed)
    kills = {}
    for number in range(count):
        when = chosen.choice(("step", "step", "evaluate", "save")) if number else "step"
        first, last = steps * number // count + 1, max(steps * (number + 1) // count, 2) - 1
        at = chosen.randint(min(first, last), last) if when == "step" else chosen.randint(1, 2)
        kills[f"kill_{number + 1}"] = Fault("kill", chosen.choice(("supervisor", *tasks)), when, at)
    return kills


def shortened(experiment: Experiment, name: str, runs_dir: Path, kills: dict[str, Fault]) -> Experiment:
    """Gives the experiment as it is run here: short, with some evaluations and saves on the way, and with kills."""
    made, steps = copy.deepcopy(experiment), _steps(experiment)
    made.mode, made.name, made.runs_dir, made.resume, made.resume_allow = "train", name, str(runs_dir), "auto", []
    made.train.steps, made.train.epochs, made.launch.inline, made.fault = steps, None, False, kills
    made.evaluate.every_steps = min(made.evaluate.every_steps or steps, max(1, steps // 8))
    made.checkpoint.every_steps = min(made.checkpoint.every_steps or steps, max(1, steps // 6))
    made.summary.every_steps = min(made.summary.every_steps, max(1, steps // 20))
    made.summary.writers = [*dict.fromkeys([*made.summary.writers, "jsonl"])]
    made.restart.max_restarts += 2 * len(kills)
    made.restart.backoff_secs = 0.0
    return made


def _steps(experiment: Experiment) -> int:
    return min(experiment.verify.steps, experiment.train.steps or experiment.verify.steps)


@dataclass
class Verification:
    """The runs of one verification.

    Attributes:
        repeats: whether two runs can be expected to be equal to the bit; otherwise all that is asked is that a run finishes.
    """

    experiment: Experiment
    overrides: list[str]
    config_dir: str | None
    runs_dir: Path
    repeats: bool

    def verify(self, kills: dict[str, Fault]) -> int:
        """Runs it, compares, and says what differs; returns the exit code."""
        straight = None
        if self.repeats:
            code, straight = self._run("straight", {})
            if straight is None:
                return code
        code, killed = self._run("killed", kills)
        if killed is None:
            print("error: the experiment with kills did not finish; its straight run did", file=sys.stderr)
            return code
        if straight is None:
            return _exact(killed.step, _steps(self.experiment))
        found = differences(straight, killed)
        if not found:
            print(f"Equal: {killed}", flush=True)
            return DONE
        code, again = self._run("again", {})
        if again is None:
            return code
        unrepeatable = differences(straight, again)
        for line in [*(unrepeatable or found), f"likely cause: {causes(straight, again if unrepeatable else killed, bool(unrepeatable))}"]:
            print(f"error: {line}", file=sys.stderr)
        return CRASHED

    def _run(self, name: str, kills: dict[str, Fault]) -> tuple[int, Outcome | None]:
        """Runs it to its end; gives the exit code, and what it came to if it has finished."""
        print(f"--- {name}", flush=True)
        made = shortened(self.experiment, name, self.runs_dir, kills)
        assignment = {"experiment": config.plain(made), "overrides": self.overrides, "config_dir": self.config_dir}
        code = -signal.SIGKILL
        for _ in range(len(kills) + 1):
            if code == -signal.SIGKILL:  # the supervisor; the same command continues
                code = _command(json.dumps(assignment))
        if code != DONE:
            return (code if code > 0 else CRASHED), None
        (run_dir,) = self.runs_dir.glob(f"{name}-*")
        return code, read(run_dir)


def _exact(step: int, steps: int) -> int:
    if step == steps:
        print(f"Finished with exactly {steps} steps; what else a run of this strategy comes to depends on who was first.", flush=True)
        return DONE
    print(f"error: it finished with {step} steps instead of {steps}", file=sys.stderr)
    return CRASHED


def _command(assignment: str) -> int:
    """Runs one command to its end, in a process and a session of its own; signals are passed on to it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer.verify_run"],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env=cluster.worker_environment(),
        text=True,
    )
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: process.send_signal(number)) for number in numbers]
    try:
        assert process.stdin is not None
        # It stays open: the process ends when it closes, also because this one was killed.
        process.stdin.write(assignment + "\n")
        process.stdin.flush()
        return process.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
