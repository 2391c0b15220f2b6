"""Searches that train many points briefly, and only the best of them for longer.

Points pause at rungs, which are budgets in steps or epochs, each `reduction` times the one before.
The best of a rung, one in `reduction`, continue from their checkpoints to the next one, and the
best of all to the end.

Sources: successive halving, Jamieson and Talwalkar 2016; Hyperband, Li et al. 2018; ASHA, Li et al.
2020, whose points pause, too, and do not train on as long as they are among the best so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from trainer.annotations import Ge, Gt, Le
from trainer.config.schema import Train
from trainer.errors import ConfigError
from trainer.runs.status import State
from trainer.sweep.search import Grid, Random, Sampler, Search, SearchContext
from trainer.sweep.study import Proposal, Study, Trial

_RUNGS = 4
"""How many there are, the end of the training included, if the smallest budget is not set."""

_LOG_WRITER = "trainer.summaries.writers.jsonl.JsonLines"

_PARTS = 10
"""Into how many parts a population divides its training, if nothing else is set."""


@dataclass(frozen=True)
class Budgets:
    """The rungs of a search: budgets, ascending, of which the last may be None: the end."""

    unit: str
    levels: Sequence[float | None]

    @classmethod
    def of(
        cls, train: Train, steps: tuple[int | None, ...], epochs: tuple[float | None, ...], eta: int
    ) -> Budgets:
        """Return the budgets between the smallest and the largest, each a pair of options.

        Raises:
            ConfigError: both units are used, or the largest is unknown or too small.
        """
        if any(steps) and any(epochs):
            raise ConfigError(
                "search sets budgets in steps and in epochs; set min_steps and max_steps, or "
                "min_epochs and max_epochs"
            )
        if any(steps) or any(epochs):
            unit = "steps" if any(steps) else "epochs"
        else:
            unit = "epochs" if train.steps is None else "steps"
        least, most = steps if unit == "steps" else epochs
        length = train.steps if unit == "steps" else train.epochs
        if most is None and length is None:
            other = "epochs" if unit == "steps" else "steps"
            raise ConfigError(
                f"search.max_{unit} (null) must be set, because the training has its length in "
                f"{other} (train.{other}={getattr(train, other)}); or set search.min_{other}"
            )
        top: float = most if most is not None else length  # type: ignore[assignment]
        if length is not None and top > length:
            raise ConfigError(
                f"search.max_{unit} ({top:g}) must be at most train.{unit} ({length})"
            )
        if least is not None and least >= top:
            raise ConfigError(f"search.min_{unit} ({least:g}) must be < the largest budget {top:g}")
        count = _RUNGS if least is None else 1 + int(math.log(top / least, eta) + 1e-9)
        below = [_rounded(top / eta**power, unit) for power in range(count - 1, 0, -1)]
        below = [level for level in dict.fromkeys(below) if level < top]
        return cls(unit, [*below, None if top == length else top])

    @classmethod
    def every(cls, train: Train, steps: int | None, epochs: float | None) -> Budgets:
        """Return the multiples of a budget, and the end; by default ten parts of the training.

        Raises:
            ConfigError: both units are used, or not that of the length of the training.
        """
        if steps is not None and epochs is not None:
            raise ConfigError("search.every_steps and search.every_epochs are both set; set one")
        unit = "epochs" if train.steps is None else "steps"
        other = "steps" if unit == "epochs" else "epochs"
        if (epochs if other == "epochs" else steps) is not None:
            raise ConfigError(
                f"search.every_{other} must be search.every_{unit}, because the training has its "
                f"length in {unit}"
            )
        length = train.epochs if train.steps is None else train.steps
        assert length is not None
        part = (epochs if unit == "epochs" else steps) or _rounded(length / _PARTS, unit)
        count = math.ceil(length / part - 1e-9)
        return cls(unit, [*(_rounded(part * index, unit) for index in range(1, count)), None])


def _rounded(budget: float, unit: str) -> float:
    return math.ceil(budget - 1e-9) if unit == "steps" else round(budget, 6)


@dataclass(frozen=True)
class SamplerOptions:
    """The options of a sampler, of a search that takes any.

    Attributes:
        name: `grid`, `random`, a class of Optuna such as `TPESampler`, or `auto`: the grid if all
            values are listed and `max_points` is null, else random.
    """

    name: str = "auto"
    max_points: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, context: SearchContext) -> Sampler:
        """Return the sampler, or raise a ConfigError."""
        is_finite = not math.isinf(context.space.size)
        name = self.name
        if name == "auto":
            name = "grid" if is_finite and self.max_points is None else "random"
        if name == "grid":
            return Grid(context)
        if self.max_points is None and not is_finite:
            raise ConfigError(
                "search.max_points (null) must be set, because a range has infinitely many values; "
                "add search.max_points=<number of points>"
            )
        max_points = int(context.space.size) if self.max_points is None else self.max_points
        if name == "random":
            return Random(context, max_points, self.seed)
        from trainer.sweep.optuna_search import OptunaSampler  # only now: it imports Optuna

        return OptunaSampler(context, name, max_points, self.seed, self.options)


def check_pauses(context: SearchContext) -> None:
    """Check that points can pause at evaluations, or raise a ConfigError."""
    base = context.base
    search = base.choices["search"]
    if base.own_loop is not None:
        raise ConfigError(
            f"search={search} pauses points, which loop ({base.own_loop}) cannot; "
            "use search=random or search=optuna"
        )
    if base.evaluate.sidecar:
        raise ConfigError(
            "evaluate.sidecar (true) evaluates while training continues, so points of "
            f"search={search} cannot pause at an evaluation; add evaluate.sidecar=false"
        )
    writers = base.writers or {}
    if not any(node.get("_target_") == _LOG_WRITER for node in writers.values()):
        raise ConfigError(
            f"writers ({', '.join(writers)}) has no jsonl, and search={search} reads in its file "
            "what a point has reached; add jsonl to the list"
        )
    if base.evaluate.every_steps is None and base.evaluate.every_epochs is None:
        raise ConfigError(
            f"evaluate evaluates at the end alone, and points of search={search} pause at an "
            "evaluation; add evaluate.every_epochs=1"
        )


@dataclass(frozen=True)
class Bracket:
    """Points that compete with one another.

    Attributes:
        first: the index of the rung at which they begin.
    """

    numbers: range
    first: int


class HalvingSearch(Search):
    """Synchronous successive halving: points continue when all have reached their rung."""

    remembers = True
    waits = True
    """Whether a rung must be complete before points of it continue."""

    def __init__(  # noqa: PLR0913 - every option is a key of the configuration
        self,
        context: SearchContext,
        *,
        min_steps: Annotated[int | None, Ge(1)] = None,
        max_steps: Annotated[int | None, Ge(1)] = None,
        min_epochs: Annotated[float | None, Gt(0)] = None,
        max_epochs: Annotated[float | None, Gt(0)] = None,
        reduction: Annotated[int, Ge(2)] = 3,
        sampler: str = "auto",
        sampler_options: Mapping[str, Any] | None = None,
        max_points: Annotated[int | None, Ge(1)] = None,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
    ) -> None:
        train = context.base.train
        self.reduction = reduction
        self.budgets = Budgets.of(
            train, (min_steps, max_steps), (min_epochs, max_epochs), reduction
        )
        self.unit = self.budgets.unit
        check_pauses(context)
        max_points = self.default_points(context) if max_points is None else max_points
        options = SamplerOptions(sampler, max_points, seed, sampler_options or {})
        super().__init__(context, options.build(context))

    def default_points(self, context: SearchContext) -> int | None:
        """Return the number of points if it is not set; None: that of the grid."""
        return None

    def brackets(self) -> Iterator[Bracket]:
        """Yield the brackets in the order in which they begin."""
        yield Bracket(range(1, self.total + 1), 0)

    def propose(self, study: Study) -> Proposal | None:
        for bracket in self.brackets():
            trials = [study.trials[n] for n in bracket.numbers if n in study.trials]
            proposal = None if self.waits else self._promotion(trials, bracket.first)
            if proposal is None and len(trials) < len(bracket.numbers):
                proposal = self.new_point(study, self.budgets.levels[bracket.first])
            if proposal := proposal or self._promotion_in_order(trials, bracket.first):
                return proposal
        return None

    def _promotion(self, trials: Sequence[Trial], first: int) -> Proposal | None:
        """Propose the best point, of the highest rung possible, that belongs to the best of it."""
        for rung in reversed(range(first, len(self.budgets.levels) - 1)):
            ended = self._ended(trials, rung)
            if proposal := self._best(ended, rung, len(ended) // self.reduction):
                return proposal
        return None

    def _promotion_in_order(self, trials: Sequence[Trial], first: int) -> Proposal | None:
        """Propose a point of the lowest rung from which not enough continue, if it is complete."""
        for rung in range(first, len(self.budgets.levels) - 1):
            stints = [trial.at(self.budgets.levels[rung]) for trial in trials]
            if any(stint and stint.outcome is None for stint in stints):
                return None
            ended = self._ended(trials, rung)
            if proposal := self._best(ended, rung, max(1, len(ended) // self.reduction)):
                return proposal
        return None

    def _ended(self, trials: Sequence[Trial], rung: int) -> list[Trial]:
        """Return the points that have reached a rung or failed before it, the best first."""
        until = self.budgets.levels[rung]
        ended = [
            (self.goal.rank(stint.outcome.metrics), trial.number, trial)
            for trial in trials
            if (stint := trial.at(until)) and stint.outcome
        ]
        return [trial for _, _, trial in sorted(ended, key=lambda item: item[:2])]

    def _best(self, ended: Sequence[Trial], rung: int, count: int) -> Proposal | None:
        """Propose the first of the best `count` points that has not continued."""
        levels = self.budgets.levels
        for trial in ended[:count]:
            is_paused = trial.outcome is not None and trial.outcome.state is State.PAUSED
            if is_paused and trial.at(levels[rung + 1]) is None:
                return Proposal(trial.number, trial.values, levels[rung + 1])
        return None


class AshaSearch(HalvingSearch):
    """Asynchronous successive halving: a point continues as soon as it is among the best so far."""

    waits = False


class HyperbandSearch(HalvingSearch):
    """Hyperband: brackets of successive halving, from many short points to a few whole ones."""

    def default_points(self, context: SearchContext) -> int:
        return int(min(sum(self._sizes()), context.space.size))

    def _sizes(self) -> list[int]:
        """Return the number of points of each bracket of one round."""
        count = len(self.budgets.levels)
        return [
            math.ceil(count / (power + 1) * self.reduction**power)
            for power in reversed(range(count))
        ]

    def brackets(self) -> Iterator[Bracket]:
        begin = 1
        while begin <= self.total:
            for first, size in enumerate(self._sizes()):
                end = min(begin + size, self.total + 1)
                if begin < end:
                    yield Bracket(range(begin, end), first)
                begin = end
