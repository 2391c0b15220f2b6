"""A sweep without training: the real driver and searches, with runs in memory.

A `World` holds what the run directories of real points would. Its processes train one evaluation at
a time, in an order drawn from a seed, and can be killed alone or together with the driver.
"""

import copy
import functools
import json
import math
from contextlib import closing
from pathlib import Path
from random import Random
from unittest.mock import MagicMock

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from trainer.cli.compose import compose as compose_with_hydra
from trainer.cluster.messages import Evaluated, Exit
from trainer.config.directions import resolved
from trainer.errors import ConfigError
from trainer.runs import identity
from trainer.runs.status import RunStatus, State
from trainer.sweep import driver, points
from trainer.sweep.search import SearchContext, create_search
from trainer.sweep.study import FILE, Study

RATE_RANGE = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
SIZE_RANGE = "batch.global_size=int(interval(16,128))"
MODEL_CHOICE = "model=cnn,softmax"
GRID = ("model=cnn,softmax,mlp", "optimizer.learning_rate=0.1,0.01,0.001")
LENGTH = 27
BASE = compose_with_hydra([f"train.epochs={LENGTH}"])
TARGETS = {
    "grid": "trainer.sweep.search.GridSearch",
    "random": "trainer.sweep.search.RandomSearch",
    "optuna": "trainer.sweep.optuna_search.OptunaSearch",
    "halving": "trainer.sweep.rungs.HalvingSearch",
    "asha": "trainer.sweep.rungs.AshaSearch",
    "hyperband": "trainer.sweep.rungs.HyperbandSearch",
    "pbt": "trainer.sweep.population.PopulationSearch",
}


class Killed(BaseException):
    """Ends a command as SIGKILL would."""


def parse(*overrides):
    return OverridesParser.create().parse_overrides(list(overrides))


def compose(overrides):
    """Compose the keys that these tests vary, without Hydra, which is slow."""
    return _compose(tuple(overrides))


@functools.cache
def _compose(overrides):
    experiment = copy.deepcopy(BASE)
    for key, value in (override.split("=", 1) for override in overrides):
        if key == "model":
            experiment.choices |= {"model": value}
            experiment.name = value  # the choice alone names no run
        elif key.startswith("init_"):
            setattr(experiment, key, value)
        elif key == "batch.global_size":
            experiment.batch.global_size = int(value)
        elif key == "optimizer.learning_rate":
            if float(value) <= 0:
                raise ConfigError(f"optimizer.learning_rate ({value}) must be > 0")
            experiment.optimizer |= {"learning_rate": float(value)}
        else:
            section_name, name = key.split(".")
            section = getattr(experiment, section_name)
            setattr(section, name, type(getattr(section, name))(value))
    return experiment


_digests = {}
_digest = identity.digest


def cached_digest(experiment):
    """Return the digest of an experiment, which no test changes after it was composed."""
    if id(experiment) not in _digests:
        _digests[id(experiment)] = experiment, _digest(experiment)
    return _digests[id(experiment)][1]


def make_search(folder, *overrides, method="asha", **settings):
    """Return a search; settings are keys of `search` and `sweep`."""
    base = copy.deepcopy(BASE)
    base.choices |= {"search": method}
    base.search = {"_target_": TARGETS[method]}
    for key, value in settings.items():
        if hasattr(base.sweep, key):
            setattr(base.sweep, key, value)
        else:
            base.search[key] = value
    base.sweep, problem = resolved(base.sweep, base)
    assert problem is None
    parsed = parse(*(overrides or GRID))
    with pytest.MonkeyPatch.context() as patch:
        for module in (identity, points):
            patch.setattr(module, "digest", cached_digest)
        return create_search(SearchContext(parsed, base, compose, Path(folder)))


def accuracy(point, step):
    """Return a curve that the learning rate and the model decide; good ones begin slowly."""
    rate = point.experiment.optimizer["learning_rate"]
    place = ("cnn", "mlp", "softmax").index(point.experiment.choices["model"])
    best = 0.9 - 0.2 * abs(math.log10(rate) + 2) - 0.03 * place
    return best * (1 - math.exp(-step / 4)) + 0.001 * (point.experiment.batch.global_size % 7)


class Run:
    """What a run directory would hold; `saved` is the step of the newest checkpoint."""

    def __init__(self):
        self.saved = 0
        self.evaluations = {}
        self.is_done = False


class World:
    """Runs, processes, and a driver that may be killed.

    Args:
        kill_at: the number of the log's write at which the driver is killed, before or after it.
        crash_rate: how likely a process dies at an evaluation.
    """

    def __init__(self, folder, seed=0, save_every=2, curve=accuracy, crash_rate=0.0):
        self.folder = folder
        self.random = Random(seed)
        self.save_every = save_every
        self.curve = curve
        self.crash_rate = crash_rate
        self.runs = {}
        self.copies = {}
        self.processes = {}
        self.trained = []

    def run(self, point):
        """Return the run of a point; a branch begins where the copied checkpoint was."""
        if str(point.path) not in self.runs:
            run = self.runs[str(point.path)] = Run()
            run.saved = self.copies.get(point.experiment.init_from, 0)
        return self.runs[str(point.path)]

    def copy(self, source, step, target):
        assert self.runs[str(source.parent)].saved >= step
        self.copies[str(target / f"ckpt-{step}")] = step

    def sweep(self, *overrides, jobs=1, writes=None, **settings):
        """Run a command to its end; return the driver. It is killed after `writes` writes."""
        search = make_search(self.folder, *overrides, **settings)
        first = search.context.base
        first.sweep.jobs = jobs
        study = Study()
        self.processes = {}
        with pytest.MonkeyPatch.context() as patch:
            self._replace(patch)
            if search.remembers:
                study.open(self.folder, search.definition)
                _die_at(study, writes, patch)
            shares = [driver.ResourceShare()] * jobs
            table = MagicMock()
            with closing(study):
                command = driver.Driver(search, study, first, shares, None, table)
                command._messages = self
                command.code = command.run()
        command.study = study
        return command

    def get(self, timeout=None):
        """Return the next message of a process, of those that run any."""
        number = self.random.choice(sorted(self.processes))
        message = next(self.processes[number])
        if isinstance(message, Exit):
            del self.processes[number]
        return number, message

    def put(self, message):
        raise AssertionError("no signal is sent in this world")

    def _replace(self, patch):
        runs = self.runs

        def status(path, experiment=None):
            run = runs.get(str(path), Run())
            last = max(run.evaluations, default=0)
            state = State.DONE if run.is_done else State.STOPPED
            return RunStatus(state, last, run.evaluations.get(last, {}))

        patch.setattr("trainer.sweep.study.os.fsync", lambda file: None)  # no power is cut
        for module in (identity, points):
            patch.setattr(module, "digest", cached_digest)
        patch.setattr("trainer.sweep.population.copy_checkpoint", self.copy)
        patch.setattr(driver, "PointProcess", self._start)
        patch.setattr(driver, "ForkServer", MagicMock())
        patch.setattr(driver, "run_status", status)
        patch.setattr(driver, "read", lambda path: {"total_steps": LENGTH, "steps_per_epoch": 1})
        patch.setattr(
            driver,
            "read_evaluations",
            lambda path: sorted(runs.get(str(path), Run()).evaluations.items()),
        )
        patch.setattr(
            driver, "committed_steps", lambda folder: [runs.get(str(folder.parent), Run()).saved]
        )
        patch.setattr(
            driver,
            "read_result",
            lambda path, experiment: {} if runs.get(str(path), Run()).is_done else None,
        )

    def _start(self, point, pause, *rest):
        process = MagicMock(point=point, share=driver.ResourceShare(), has_lost_server=False)
        process.asked = False

        def send(message):
            process.asked = True

        process.send = send
        assert point.number not in self.processes, "two processes of one point"
        self.processes[point.number] = self._train(point, pause, process)
        return process

    def _train(self, point, pause, process):
        """Train from the newest checkpoint; an evaluation after each step, a save after some."""
        run = self.run(point)
        until = pause.at_step or pause.at_epoch or math.inf
        for step in range(run.saved + 1, LENGTH + 1):
            self.trained.append((point.number, step))
            loss = point.experiment.optimizer["learning_rate"]  # the best accuracies have others
            run.evaluations[step] = metrics = {"accuracy": self.curve(point, step), "loss": loss}
            if self.random.random() < self.crash_rate:
                yield Exit(-9)
                return
            yield Evaluated(step, metrics, "")
            if step % self.save_every == 0 or step >= until or process.asked or step == LENGTH:
                run.saved = step
            if process.asked:
                yield Exit(143)
                return
            if until <= step < LENGTH:
                yield Exit(0)
                return
        run.is_done = True
        yield Exit(0)


def _die_at(study, writes, patch):
    """Kill the driver at a write of its log: an odd number before it, an even one after it."""
    if writes is None:
        return
    left = [writes]
    write = study._write

    def write_or_die(line):
        left[0] -= 1
        if left[0] <= 0 and writes % 2:
            raise Killed
        write(line)
        if left[0] <= 0:
            raise Killed

    study._write = write_or_die


def read_log(folder):
    """Return the events of a log, without the definition."""
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()[1:]]


def replay(folder, *overrides, **settings):
    """Assert that the search decides again, event by event, what the log says it has decided."""
    search = make_search(folder, *overrides, **settings)
    study = Study()
    for event in read_log(folder):
        if event["event"] in ("start", "continue"):
            proposal = search.propose(study)
            assert (proposal.number, proposal.until) == (event["number"], event["until"])
            assert dict(proposal.values) == event.get("values", dict(proposal.values))
        study.apply(event)
        if event["event"] == "report" and event["step"] < LENGTH:
            trial = study.trials[event["number"]]
            trial.verdict = search.prunes(study, trial)
        if event["event"] == "end":
            is_pruned = event["outcome"]["state"] == "pruned"
            assert is_pruned == getattr(study.trials[event["number"]], "verdict", False)
    return study


def table(command):
    """Return the outcomes of a command by point."""
    return {
        number: (result.point.label, result.outcome.state.value, result.outcome.step)
        for number, result in sorted(command.results.items())
    }
