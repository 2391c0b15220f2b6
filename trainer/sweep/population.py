"""Population based training (Jaderberg et al. 2017): the worst copy the best, and explore.

All members train until the same budget. Then each of the worst is replaced by a branch of one of
the best: a new point, which starts with that one's checkpoint and with changed values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Annotated

from trainer.annotations import Ge, Gt, Le, Structural
from trainer.cli.overrides import path_override
from trainer.config.schema import GROUPS
from trainer.errors import ConfigError
from trainer.files import writing
from trainer.runs.checkpoint_marker import copy_checkpoint
from trainer.runs.identity import effect_of, leaves, run_address
from trainer.runs.status import RunStatus, State
from trainer.sweep.points import Point
from trainer.sweep.rungs import Budgets, check_pauses
from trainer.sweep.search import Random as RandomSampler
from trainer.sweep.search import Search, SearchContext
from trainer.sweep.space import Choice, ParameterRange
from trainer.sweep.study import Proposal, Stint, Study, Trial

_FACTORS = (0.8, 1.25)
"""By one of them a number is multiplied; a choice moves to a neighbor in the list."""


class PopulationSearch(Search):
    """Trains a population; `Trial.state` has the member that a point is, and its origin."""

    remembers = True

    def __init__(
        self,
        context: SearchContext,
        *,
        population: Annotated[int, Ge(2)] = 8,
        every_steps: Annotated[int | None, Ge(1)] = None,
        every_epochs: Annotated[float | None, Gt(0)] = None,
        replaced: Annotated[float, Gt(0), Le(0.5)] = 0.25,
        resample: Annotated[float, Ge(0), Le(1)] = 0.25,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
    ) -> None:
        check_pauses(context)
        if address := run_address(context.base):
            raise ConfigError(
                f"search=pbt copies checkpoints between folders, and runs_dir ({address}) is in an "
                "object store; use another search, or a folder"
            )
        super().__init__(context, RandomSampler(context, population, seed))
        if self.total < population:
            raise ConfigError(
                f"search.population ({population}) must be at most the number of different points "
                f"({self.total}); give ranges more values"
            )
        self._check_keys()
        self.budgets = Budgets.every(context.base.train, every_steps, every_epochs)
        self.unit = self.budgets.unit
        self._population = population
        self._num_replaced = max(1, int(population * replaced))
        self._resample = resample
        self._seed = seed

    def _check_keys(self) -> None:
        values = leaves(self.context.base)
        for key in self.context.space.ranges:
            node = key if key in GROUPS else key.rpartition(".")[0]
            name = f"{key}._target_" if key in GROUPS else key
            if isinstance(effect_of(name, values.get(f"{node}._target_")), Structural):
                raise ConfigError(
                    f"{key} cannot change within a training, so search=pbt cannot explore it; "
                    "give it one value"
                )

    @property
    def total(self) -> int:
        """The number of points that begin without an origin."""
        return self.sampler.total

    def propose(self, study: Study) -> Proposal | None:
        levels = self.budgets.levels
        if len(study.trials) < self._population:
            sample = self.sampler.sample(study, number := len(study.trials) + 1)
            return (
                Proposal(number, sample.values, levels[0], {"member": number}) if sample else None
            )
        for until, after in pairwise(levels):
            members = self._members(study, until)
            ends = [_part(trial, until) for trial in members.values()]
            if len(ends) < self._population or not all(part and part.outcome for part in ends):
                return None
            continued = self._members(study, after)
            if len(continued) == self._population:
                continue
            return self._next(study, members, continued, until, after)
        return None

    def _members(self, study: Study, until: float | None) -> dict[int, Trial]:
        """Return the points that have a part of their training with this budget, by member."""
        trials = study.trials.values()
        return {trial.state["member"]: trial for trial in trials if _part(trial, until)}

    def _next(
        self,
        study: Study,
        members: Mapping[int, Trial],
        continued: Mapping[int, Trial],
        until: float | None,
        after: float | None,
    ) -> Proposal | None:
        """Propose the next branch, then the next member that continues.

        Branches come first: what they copy must be there, and a point that continues may remove it.
        """
        outcomes = {member: _outcome(trial, until) for member, trial in members.items()}
        ranked = sorted(outcomes, key=lambda each: (self.goal.rank(outcomes[each].metrics), each))
        able = [each for each in ranked if outcomes[each].state is State.PAUSED]
        best = able[: self._num_replaced]
        failed = [each for each in ranked if outcomes[each].state is State.FAILED]
        number = len(study.trials) + 1
        for member in sorted({*ranked[-self._num_replaced :], *failed} - {*best, *continued}):
            if best and (member in able or member in failed):
                random = Random(f"{self._seed}:{number}")
                source = random.choice(best)
                state = {
                    "member": member,
                    "origin": [members[source].number, outcomes[source].step],
                }
                values = self._explore(members[source].values, random)
                return Proposal(number, values, after, state)
        for member in sorted({*able} - {*continued}):
            return Proposal(members[member].number, members[member].values, after)
        return None

    def _explore(self, values: Mapping[str, str], random: Random) -> dict[str, str]:
        """Return changed values: each is sampled again, or moves."""
        return {
            key: parameter.sample(random)
            if random.random() < self._resample
            else _moved(parameter, values[key], random)
            for key, parameter in self.context.space.ranges.items()
        }

    def prepare(self, study: Study, trial: Trial) -> None:
        """Copy the checkpoint of the origin, which may soon be removed there."""
        if "origin" not in trial.state:
            return
        number, step = trial.state["origin"]
        origin = self.point(study.trials[number])
        assert origin is not None
        target = self._folder(trial)
        with writing(target):
            copy_checkpoint(origin.path / "checkpoints", step, target)

    def point(self, trial: Trial) -> Point | None:
        if "origin" not in trial.state:
            return self.sampler.point(trial)
        number, step = trial.state["origin"]
        checkpoint = self._folder(trial) / f"ckpt-{step}"
        extra = [path_override("init_from", checkpoint), "init_state=true"]
        return self.context.factory.point(trial.number, trial.values, extra, f"{number} at {step}")

    def _folder(self, trial: Trial) -> Path:
        return self.context.folder / "origins" / str(trial.number)


def _part(trial: Trial, until: float | None) -> Stint | None:
    """Return the part of a training with a budget; the last one of a training that ended before."""
    last = trial.stints[-1]
    is_done = last.outcome is not None and last.outcome.state is State.DONE
    is_before = last.until is not None and (until is None or last.until < until)
    return trial.at(until) or (last if is_done and is_before else None)


def _outcome(trial: Trial, until: float | None) -> RunStatus:
    part = _part(trial, until)
    assert part is not None
    assert part.outcome is not None
    return part.outcome


def _moved(parameter: ParameterRange, value: str, random: Random) -> str:
    """Return a neighbor of a value: of a list, or by a factor."""
    if isinstance(parameter, Choice):
        values: Sequence[str] = parameter.values
        place = values.index(value) + random.choice((-1, 1))
        return values[min(max(place, 0), len(values) - 1)]
    number = float(value) * random.choice(_FACTORS)
    if parameter.step and parameter.step > 1:
        number = parameter.low + parameter.step * round((number - parameter.low) / parameter.step)
    return parameter.format(number)
