"""Points that learn from those before: an Optuna study in SQLite, asked and told, that outlives the command. No TensorFlow.

A trial of the study with the attribute `point` is that point of the sweep; of several, the last, which tries again what
failed. A trial without it is none: it was killed while it was drawn, or drew values that were there before.
"""

from __future__ import annotations

import fcntl
import math
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from trainer.errors import ConfigError
from trainer.files import writing
from trainer.identity import run_name
from trainer.outcome import Outcome, State, evaluations, smaller_is_better
from trainer.schema import Experiment
from trainer.sweep.candidates import Candidates
from trainer.sweep.points import Point
from trainer.sweep.space import Choice, Space

FILE = "study.db"
_JUDGED = 5
"""How many points must be complete before one is pruned."""
_LOCK_WAIT_SECS = 5.0  # what a command that was killed had just started needs a moment to let go of it
_REFUSED = (SQLAlchemyError, StorageInternalError)
"""What a database raises that cannot be read or written."""


class OptunaSearch:
    """Asks a study for points and tells it what they came to.

    Args:
        space: what is varied.
        candidates: makes the points.
        base: the composed configuration of one of them, for what they share.
        folder: where the study is kept.

    Raises:
        ConfigError: the folder holds the study of another search, or another process is at it.
        StorageError: the study cannot be read or written; every method may raise it.
    """

    def __init__(self, space: Space, candidates: Candidates, base: Experiment, folder: Path) -> None:
        self.total = int(min(base.search.trials, space.size))
        self._space, self._candidates, self._seed, self._number = space, candidates, base.search.seed, 0
        self._metric = base.sweep.metric or "accuracy"
        self._lock, self._path = _hold(folder), folder / FILE
        with writing(self._path, *_REFUSED):
            self._study = _study(space, base, self._metric, self._path)
            self._recorded = _recorded(self._study)
        self._trials: dict[int, Trial] = {}

    def next(self) -> Point | None:
        number = self._number + 1
        if number > self.total:
            return None
        with writing(self._path, *_REFUSED):
            point = self._again(number) or self._new(number)
        if point is None:
            self.total = self._number
            return None
        self._number = number
        return point

    def report(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        with writing(self._path, *_REFUSED):
            return self._report(self._trials[point.number], step, metrics, self._value(metrics))

    def tell(self, point: Point, outcome: Outcome) -> None:
        told: dict[str, Any]
        if outcome.state is State.DONE and math.isfinite(value := self._value(outcome.metrics)):
            told = {"values": value}
        elif outcome.state is State.PRUNED:
            told = {"state": TrialState.PRUNED}
        else:
            told = {"state": TrialState.FAIL}
        with writing(self._path, *_REFUSED):
            self._study.tell(self._trials[point.number].number, **told, skip_if_finished=True)

    def _report(self, trial: Trial, step: int, metrics: Mapping[str, float], value: float) -> bool:
        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        if frozen.state.is_finished():
            return False  # its directory is gone, and it is trained again
        # Points are compared after as many evaluations: after as many steps, those of smaller batches have seen less.
        evaluated = frozen.user_attrs.get("evaluated", [])
        if step not in (before for before, _ in evaluated):
            trial.set_user_attr("evaluated", [*evaluated, (step, dict(metrics))])
            trial.report(value, len(evaluated) + 1)
        return trial.should_prune()

    def _again(self, number: int) -> Point | None:
        """Gives a point of an earlier command; one that failed is a new trial of the same values."""
        if number not in self._recorded:
            return None
        trial = self._trials[number] = Trial(self._study, self._recorded[number]._trial_id)  # Optuna names it in no other way
        point, state = self._candidates.point(number, self._varied(trial)), self._recorded[number].state
        if point is None:
            return None
        if state == TrialState.FAIL:
            trial = self._trials[number] = self._enqueued(point)
        if state == TrialState.PRUNED or (state != TrialState.COMPLETE and self._stays_behind(point)):
            step, metrics = trial.user_attrs["evaluated"][-1]
            return replace(point, pruned=Outcome(State.PRUNED, step, metrics))
        return point

    def _stays_behind(self, point: Point) -> bool:
        """Tells what the run has written and a command that was killed has not told; gives whether it is not worth going on."""
        return any(self.report(point, step, metrics) for step, metrics in evaluations(point.path))

    def _new(self, number: int) -> Point | None:
        """Asks for a point; where that was there before, draws one. What is asked for depends on the seed and what was told."""
        self._study.sampler = _Rounded(self._space, f"{self._seed}:{number}")
        trial = self._study.ask()
        if point := self._candidates.point(number, self._varied(trial)):
            trial.set_user_attr("point", number)
            trial.set_user_attr("run", str(point.path))
        else:
            self._study.tell(trial, state=TrialState.FAIL)
            point = self._candidates.drawn(number, self._seed)
            if point is None:
                return None
            trial = self._enqueued(point)
        self._trials[number] = trial
        return point

    def _enqueued(self, point: Point) -> Trial:
        params = {key: value if isinstance(self._space.ranges[key], Choice) else float(value) for key, value in point.varied.items()}
        self._study.enqueue_trial(params, user_attrs={"point": point.number, "run": str(point.path)})
        trial = self._study.ask()
        self._varied(trial)
        return trial

    def _varied(self, trial: Trial) -> dict[str, str]:
        """Gives a trial's values as they are written on a command line; those it lacks are drawn."""
        varied = {}
        for key, values in self._space.ranges.items():
            if isinstance(values, Choice):
                varied[key] = trial.suggest_categorical(key, values.values)
            elif values.step:
                varied[key] = values.text(trial.suggest_int(key, int(values.low), int(values.high), step=values.step, log=values.log))
            else:
                varied[key] = values.text(trial.suggest_float(key, values.low, values.high, log=values.log))
        return varied

    def _value(self, metrics: Mapping[str, float]) -> float:
        if self._metric not in metrics:
            raise ConfigError(
                f"sweep.metric ({self._metric}) must be a metric of the test split, which has {', '.join(metrics) or 'none'}; "
                "add sweep.metric=<one of them>"
            )
        return metrics[self._metric]


class _Rounded(TPESampler):
    """Draws numbers of few digits, so that the study learns from the values that are trained."""

    def __init__(self, space: Space, seed: str) -> None:
        super().__init__(seed=random.Random(seed).getrandbits(32))
        self._ranges = space.ranges

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        drawn = super().sample_relative(study, trial, search_space)
        return {key: self._rounded(key, value) for key, value in drawn.items()}

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution) -> Any:
        return self._rounded(param_name, super().sample_independent(study, trial, param_name, param_distribution))

    def _rounded(self, key: str, value: Any) -> Any:
        values = self._ranges[key]
        return value if isinstance(values, Choice) else values.rounded(value)


def _hold(folder: Path) -> IO[str]:
    """Locks the folder for as long as what it gives lives: two commands would take each other's points for abandoned ones."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    deadline = time.monotonic() + _LOCK_WAIT_SECS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.close()
                raise ConfigError(f"{folder} is searched by another command; wait for it, or stop it") from None
            time.sleep(0.05)


def _study(space: Space, base: Experiment, metric: str, path: Path) -> Study:
    """Opens a study, or makes it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    goal: Literal["minimize", "maximize"] = "minimize" if smaller_is_better(metric, base.sweep.mode) else "maximize"
    pruner: BasePruner = MedianPruner(n_startup_trials=_JUDGED, n_warmup_steps=2) if base.search.prune else NopPruner()
    place: dict[str, Any] = {"study_name": path.parent.name, "storage": f"sqlite:///{path.absolute()}"}
    wanted = {
        "what they share": run_name(base),
        "goal": f"{goal} {metric}",
        **{key: str(values) for key, values in space.ranges.items()},
    }
    study = optuna.create_study(**place, direction=goal, pruner=pruner, load_if_exists=True)
    if (held := study.user_attrs.get("search", wanted)) != wanted:
        if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            raise ConfigError(*_differences(path, held, wanted))
        optuna.delete_study(**place)  # it has learned nothing, perhaps because of a wrong metric
        study = optuna.create_study(**place, direction=goal, pruner=pruner)
    study.set_user_attr("search", wanted)
    return study


def _differences(path: Path, held: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    keys = [key for key in {**held, **wanted} if held.get(key) != wanted.get(key)]
    changes = "; ".join(f"{key}: {held.get(key, 'none')} -> {wanted.get(key, 'none')}" for key in keys)
    return [
        f"{path} holds a search that differs in {changes}",
        "go on with the command as it was, or start another search with sweep.name=<name>",
    ]


def _recorded(study: Study) -> dict[int, FrozenTrial]:
    """Gives the points of earlier commands by their numbers; what was being drawn when one was killed is no point."""
    while any(trial.state == TrialState.WAITING for trial in study.get_trials(deepcopy=False)):
        study.ask()
    recorded: dict[int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        if "point" in trial.user_attrs:
            recorded[trial.user_attrs["point"]] = trial
        elif not trial.state.is_finished():
            study.tell(trial.number, state=TrialState.FAIL)
    return recorded
