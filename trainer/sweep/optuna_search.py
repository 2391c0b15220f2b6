"""Optuna's samplers and pruners, by their names.

What they see is built from the study of the search, which has a log: a killed command continues
with the same decisions, and no database is needed.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from trainer.annotations import Ge, Le
from trainer.config.options.constraints import format_plain
from trainer.errors import ConfigError
from trainer.runs.status import State
from trainer.sweep.points import Point
from trainer.sweep.search import Goal, Sample, Search, SearchContext
from trainer.sweep.space import Choice, ParameterRange
from trainer.sweep.study import Study, Trial

_STATES = {
    State.DONE: TrialState.COMPLETE,
    State.PAUSED: TrialState.PRUNED,  # it has values along the way, and none at the end
    State.PRUNED: TrialState.PRUNED,
}
"""The states of Optuna that count; any other outcome is a failure."""


class OptunaSampler:
    """Chooses points by the results of earlier ones.

    A point depends on the seed, its number, and the study.

    Args:
        name: the class in `optuna.samplers`.
        options: arguments of that class, but the seed.
        pruner: what prunes the points of the search: some samplers look at it.
    """

    points: Sequence[Point] = ()
    notes: Sequence[str] = ()

    def __init__(
        self,
        context: SearchContext,
        name: str,
        max_points: int,
        seed: int,
        options: Mapping[str, Any],
        pruner: BasePruner | None = None,
    ) -> None:
        self.total = int(min(max_points, context.space.size))
        self._factory = context.factory
        self._seed = seed
        self._name = name
        self._options = dict(options)
        self._pruner = pruner
        self._goals = Goal.all_of(context.base.sweep)
        self.distributions = {
            key: _distribution(values) for key, values in context.space.ranges.items()
        }
        self._ranges = context.space.ranges
        sampler = self._sampler(0)
        if len(self._goals) > 1:
            try:
                _mirror(self._goals, sampler, pruner).ask(self.distributions)
            except ValueError as error:
                raise ConfigError(
                    f"search.sampler ({name}) chooses by one metric, and sweep.metric has "
                    f"{len(self._goals)}; add search.sampler=TPESampler"
                ) from error

    def sample(self, study: Study, number: int) -> Sample | None:
        seed = random.Random(f"{self._seed}:{number}").getrandbits(32)
        mirror = _mirror(self._goals, self._sampler(seed), self._pruner)
        for trial in study.trials.values():
            mirror.add_trial(_frozen(trial, self._goals, self.distributions))
        asked = mirror.ask(self.distributions)
        if point := self._factory.point(number, self._values(asked.params)):
            state = mirror.get_trials(deepcopy=False)[-1].system_attrs
            return Sample(point.varied, dict(state) or None)
        # It repeats a point, or its configuration is invalid.
        point = self._factory.sample(number, self._seed)
        return Sample(point.varied) if point else None

    def point(self, trial: Trial) -> Point | None:
        return self._factory.point(trial.number, trial.values)

    def _sampler(self, seed: int) -> BaseSampler:
        names = {**self._options, "seed": seed}
        return cast(
            BaseSampler, _create("sampler", optuna.samplers, BaseSampler, self._name, names)
        )

    def _values(self, params: Mapping[str, Any]) -> dict[str, str]:
        """Return a trial's values as on a command line."""
        return {
            key: params[key] if isinstance(values, Choice) else values.format(params[key])
            for key, values in self._ranges.items()
        }


class OptunaSearch(Search):
    """Chooses points by the results of earlier ones, and prunes those that fall behind."""

    requires = ("optuna", "steadfast-trainer[optuna]")
    remembers = True
    compares_several = True

    def __init__(
        self,
        context: SearchContext,
        *,
        sampler: str = "TPESampler",
        sampler_options: Mapping[str, Any] | None = None,
        pruner: str = "MedianPruner",
        pruner_options: Mapping[str, Any] | None = None,
        max_points: Annotated[int, Ge(1)] = 20,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._pruner = cast(
            BasePruner,
            _create("pruner", optuna.pruners, BasePruner, pruner, dict(pruner_options or {})),
        )
        chosen = OptunaSampler(
            context, sampler, max_points, seed, sampler_options or {}, self._pruner
        )
        super().__init__(context, chosen)
        self._distributions = chosen.distributions
        if len(self.goals) > 1 and pruner != "NopPruner":
            raise ConfigError(
                f"search.pruner ({pruner}) must be NopPruner, because Optuna prunes by one metric "
                f"and sweep.metric is {format_plain(context.base.sweep.metric)}; "
                "add search.pruner=NopPruner"
            )
        self._mirror = _mirror(self.goals, None, self._pruner)
        self._ids: dict[int, int] = {}
        self._num_seen = 0
        self._verdicts: dict[int, bool] = {}

    def prunes(self, study: Study, trial: Trial) -> bool:
        """Return the pruner's verdict on the newest report of a point.

        Points are compared after equally many evaluations. After equally many steps, those with
        smaller batches have seen fewer examples.
        """
        for event in study.events[self._num_seen :]:
            self._take(event, study)
        self._num_seen = len(study.events)
        return self._verdicts.get(trial.number, False)

    def _take(self, event: Mapping[str, Any], study: Study) -> None:
        """Do in Optuna's study what an event says; a pruner may keep notes there."""
        number = event["number"]
        storage = self._mirror._storage  # there is no public way to write to a trial by its number
        match event["event"]:
            case "start" | "retry":  # Optuna has no way to open a trial again
                known = self._ids.get(number)
                frozen = create_trial(
                    state=TrialState.RUNNING,
                    params=_params(study.trials[number].values, self._distributions),
                    distributions=self._distributions,
                    intermediate_values=None
                    if known is None
                    else storage.get_trial(known).intermediate_values,
                )
                self._mirror.add_trial(frozen)
                self._ids[number] = self._mirror.get_trials(deepcopy=False)[-1]._trial_id
            case "report" if self.goal.metric in event["metrics"]:
                identity = self._ids[number]
                count = len(storage.get_trial(identity).intermediate_values)
                storage.set_trial_intermediate_value(
                    identity, count + 1, float(event["metrics"][self.goal.metric])
                )
                self._verdicts[number] = self._pruner.prune(
                    self._mirror, storage.get_trial(identity)
                )
            case "end":
                outcome = event["outcome"]
                state, values = _end(State(outcome["state"]), outcome["metrics"], self.goals)
                if not storage.get_trial(self._ids[number]).state.is_finished():
                    storage.set_trial_state_values(self._ids[number], state, values)


def _mirror(
    goals: Sequence[Goal], sampler: BaseSampler | None, pruner: BasePruner | None
) -> optuna.Study:
    directions = [
        StudyDirection.MINIMIZE if goal.mode == "min" else StudyDirection.MAXIMIZE for goal in goals
    ]
    # The name is fixed: Hyperband's pruner draws a bracket from it.
    return optuna.create_study(
        directions=directions, sampler=sampler, pruner=pruner, study_name="search"
    )


def _frozen(
    trial: Trial, goals: Sequence[Goal], distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """Return a point as Optuna's samplers see it."""
    metric = goals[0].metric
    state, values = TrialState.RUNNING, None
    if outcome := trial.outcome:
        state, values = _end(outcome.state, outcome.metrics, goals)
    reports = [metrics[metric] for metrics in trial.evaluations.values() if metric in metrics]
    return create_trial(
        state=state,
        values=values,
        params=_params(trial.values, distributions),
        distributions=dict(distributions),
        system_attrs=trial.state,
        intermediate_values=dict(enumerate(reports, 1)),
    )


def _end(
    state: State, metrics: Mapping[str, float], goals: Sequence[Goal]
) -> tuple[TrialState, list[float] | None]:
    if state is State.DONE:
        values = [goal.value(metrics) for goal in goals]
        is_finite = all(map(math.isfinite, values))
        return (TrialState.COMPLETE, values) if is_finite else (TrialState.FAIL, None)
    return _STATES.get(state, TrialState.FAIL), None


def _distribution(values: ParameterRange) -> BaseDistribution:
    if isinstance(values, Choice):
        return CategoricalDistribution(values.values)
    if values.step:
        return IntDistribution(int(values.low), int(values.high), values.log, values.step)
    return FloatDistribution(values.low, values.high, values.log)


def _params(
    values: Mapping[str, str], distributions: Mapping[str, BaseDistribution]
) -> dict[str, Any]:
    return {
        key: values[key]
        if isinstance(distribution, CategoricalDistribution)
        else int(values[key])
        if isinstance(distribution, IntDistribution)
        else float(values[key])
        for key, distribution in distributions.items()
    }


def _create(option: str, module: Any, base: type, name: str, options: dict[str, Any]) -> Any:
    """Return an object of one of Optuna's classes; options that it does not have are refused."""
    names = [
        each
        for each in module.__all__
        if isinstance(kind := getattr(module, each), type)
        and issubclass(kind, base)
        and kind not in (base, optuna.samplers.QMCSampler)  # that is no function of the study
    ]
    if name not in names:
        raise ConfigError(
            f"search.{option} ({name}) must be one of Optuna's classes: {', '.join(sorted(names))}"
        )
    target = getattr(module, name)
    known = inspect.signature(target).parameters
    if unknown := [key for key in options if key not in known and key != "seed"]:
        raise ConfigError(
            f"search.{option}_options.{unknown[0]} is no argument of {name}; it has "
            f"{', '.join(known)}"
        )
    try:
        return target(**{key: value for key, value in options.items() if key in known})
    except ImportError as error:
        raise ConfigError(f"search.{option} ({name}) needs another package: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"search.{option}_options: {name} refuses them: {error}") from error
