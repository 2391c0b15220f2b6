"""Optuna search: a study in SQLite chooses the points and outlives the command.

A trial of the study with the attribute `point` is that point of the sweep; of several, the last
one, which repeats a failed one. Trials without the attribute do not count: their command was killed
while sampling, or they have sampled the values of another point.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from trainer.annotations import Ge, Le
from trainer.config.directions import selecting_split
from trainer.errors import ConfigError
from trainer.files import writing
from trainer.runs.identity import run_name
from trainer.runs.recorded_metrics import read_evaluations
from trainer.runs.status import RunStatus, State
from trainer.sweep.search import Choice, Point, PointFactory, Search, SearchContext
from trainer.sweep.summary import lock_folder

_FILE = "study.db"
_STARTUP_TRIALS = 5
"""Points that must be complete before one is pruned."""
_DATABASE_ERRORS = (SQLAlchemyError, StorageInternalError)


class OptunaSearch(Search):
    """Chooses points by the results of earlier ones.

    Every method may raise a StorageError: the study cannot be read or written.
    """

    requires = ("optuna", "steadfast-trainer[optuna]")

    def __init__(
        self,
        context: SearchContext,
        *,
        trials: Annotated[int, Ge(1)] = 20,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
        prune: bool = True,
    ) -> None:
        space = context.space()
        self.total = int(min(trials, space.size))
        self._context = context
        self._space = space
        self._points = PointFactory(space, context.compose)
        self._seed = seed
        self._prunes = prune
        self._number = 0
        self._metric = context.base.sweep.metric or "loss"
        self._path = context.folder / _FILE
        self._trials: dict[int, Trial] = {}

    def begin(self) -> None:
        """Open the study, or raise a ConfigError: another search has it, or another process."""
        self._lock = lock_folder(self._context.folder)  # for as long as this object lives
        with writing(self._path, *_DATABASE_ERRORS):
            self._study = self._open_study()
            self._recorded = _recorded_trials(self._study)

    def next_point(self) -> Point | None:
        number = self._number + 1
        if number > self.total:
            return None
        with writing(self._path, *_DATABASE_ERRORS):
            point = self._recorded_point(number) or self._new_point(number)
        if point is None:
            self.total = self._number
            return None
        self._number = number
        return point

    def should_prune(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        trial = self._trials[point.number]
        if self._metric not in metrics:
            return False  # it may come with a later evaluation; at the end it must be there
        value = self._value(metrics)
        with writing(self._path, *_DATABASE_ERRORS):
            frozen = self._study.get_trials(deepcopy=False)[trial.number]
            if frozen.state.is_finished():
                return False  # its run directory was removed, and it is trained again
            # Points are compared after equally many evaluations. After equally many steps, those
            # with smaller batches have seen fewer examples.
            evaluated = frozen.user_attrs.get("evaluated", [])
            if step not in (earlier_step for earlier_step, _ in evaluated):
                trial.set_user_attr("evaluated", [*evaluated, (step, dict(metrics))])
                trial.report(value, len(evaluated) + 1)
            return trial.should_prune()

    def record_outcome(self, point: Point, outcome: RunStatus) -> None:
        result: dict[str, Any] = {"state": TrialState.FAIL}
        if outcome.state is State.DONE and math.isfinite(value := self._value(outcome.metrics)):
            result = {"values": value}
        elif outcome.state is State.PRUNED:
            result = {"state": TrialState.PRUNED}
        number = self._trials[point.number].number
        with writing(self._path, *_DATABASE_ERRORS):
            self._study.tell(number, **result, skip_if_finished=True)

    def _open_study(self) -> Study:
        """Return the study in a file; it is created, or replaced if it has no results."""
        base = self._context.base
        path = self._path
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        goal: Literal["minimize", "maximize"] = (
            "minimize" if base.sweep.mode == "min" else "maximize"
        )
        pruner: BasePruner = (
            MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=2)
            if self._prunes
            else NopPruner()
        )
        location: dict[str, Any] = {
            "study_name": path.parent.name,
            "storage": f"sqlite:///{path.absolute()}",
        }
        search = {
            "fixed configuration": run_name(base),
            "goal": f"{goal} {self._metric}",
            **{key: str(values) for key, values in self._space.ranges.items()},
        }
        study = optuna.create_study(**location, direction=goal, pruner=pruner, load_if_exists=True)
        if (recorded := study.user_attrs.get("search", search)) != search:
            if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
                raise ConfigError(*_differences(path, recorded, search))
            optuna.delete_study(**location)
            study = optuna.create_study(**location, direction=goal, pruner=pruner)
        study.set_user_attr("search", search)
        return study

    def _recorded_point(self, number: int) -> Point | None:
        """Return the point of an earlier command, if any; a failed one becomes a new trial."""
        if number not in self._recorded:
            return None
        # Optuna has no public way to open a recorded trial.
        trial = Trial(self._study, self._recorded[number]._trial_id)
        self._trials[number] = trial
        point = self._points.create(number, self._sample(trial))
        state = self._recorded[number].state
        if point is None:
            return None
        if state == TrialState.FAIL:
            trial = self._trials[number] = self._create_trial(point)
        if state == TrialState.PRUNED or (
            state != TrialState.COMPLETE and self._should_have_been_pruned(point)
        ):
            step, metrics = trial.user_attrs["evaluated"][-1]
            split = selecting_split(point.experiment)
            return replace(point, pruned=RunStatus(State.PRUNED, step, metrics, split=split))
        return point

    def _should_have_been_pruned(self, point: Point) -> bool:
        """Record the evaluations of a run that outlived its command; return whether to prune."""
        return any(
            self.should_prune(point, step, metrics)
            for step, metrics in read_evaluations(point.path)
        )

    def _new_point(self, number: int) -> Point | None:
        """Return a point of the study, or a random one where the study repeats a point.

        It depends on the seed, the number and the recorded outcomes alone.
        """
        seed = random.Random(f"{self._seed}:{number}").getrandbits(32)
        self._study.sampler = TPESampler(seed=seed)
        trial = self._study.ask()
        if point := self._points.create(number, self._sample(trial)):
            trial.set_user_attr("point", number)
            trial.set_user_attr("run", str(point.path))
        else:
            self._study.tell(trial, state=TrialState.FAIL)
            point = self._points.sample(number, self._seed)
            if point is None:
                return None
            trial = self._create_trial(point)
        self._trials[number] = trial
        return point

    def _create_trial(self, point: Point) -> Trial:
        params = {
            key: value if isinstance(self._space.ranges[key], Choice) else float(value)
            for key, value in point.varied.items()
        }
        attributes = {"point": point.number, "run": str(point.path)}
        self._study.enqueue_trial(params, user_attrs=attributes)
        trial = self._study.ask()
        self._sample(trial)
        return trial

    def _sample(self, trial: Trial) -> dict[str, str]:
        """Return a trial's values as on a command line; those that it lacks are sampled."""
        varied = {}
        for key, values in self._space.ranges.items():
            if isinstance(values, Choice):
                varied[key] = trial.suggest_categorical(key, values.values)
            elif values.step:
                low = int(values.low)
                high = int(values.high)
                number = trial.suggest_int(key, low, high, step=values.step, log=values.log)
                varied[key] = values.format(number)
            else:
                value = trial.suggest_float(key, values.low, values.high, log=values.log)
                varied[key] = values.format(value)
        return varied

    def _value(self, metrics: Mapping[str, float]) -> float:
        if self._metric not in metrics:
            raise ConfigError(
                f"sweep.metric ({self._metric}) must be a metric of the evaluation, "
                f"which has {', '.join(metrics) or 'none'}; add sweep.metric=<one of them>"
            )
        return metrics[self._metric]


def _differences(path: Path, recorded: Mapping[str, str], search: Mapping[str, str]) -> list[str]:
    changes = "; ".join(
        f"{key}: {recorded.get(key, 'none')} -> {search.get(key, 'none')}"
        for key in {**recorded, **search}
        if recorded.get(key) != search.get(key)
    )
    return [
        f"{path} holds a search that differs in {changes}",
        "continue with the command as it was, or start another search with sweep.name=<name>",
    ]


def _recorded_trials(study: Study) -> dict[int, FrozenTrial]:
    """Return the trials of earlier commands by point; fail those that were never completed."""
    while any(trial.state == TrialState.WAITING for trial in study.get_trials(deepcopy=False)):
        study.ask()  # enqueued, and the command was killed before it took it
    trials: dict[int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        if "point" in trial.user_attrs:
            trials[trial.user_attrs["point"]] = trial
        elif not trial.state.is_finished():
            study.tell(trial.number, state=TrialState.FAIL)
    return trials
