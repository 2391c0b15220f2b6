"""The Optuna study of a sweep: opened, created, or refused if it belongs to another search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.sweep.search.search_space import SearchSpace

FILE = "study.db"
_STARTUP_TRIALS = 5
"""Points that must be complete before one is pruned."""


def open_study(space: SearchSpace, base: Experiment, metric: str, path: Path) -> Study:
    """Return the study in a file; it is created, or replaced if it has no results.

    Raises:
        ConfigError: the file has the results of another search.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    goal: Literal["minimize", "maximize"] = "minimize" if base.sweep.mode == "min" else "maximize"
    pruner: BasePruner = (
        MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=2)
        if base.search.prune
        else NopPruner()
    )
    location: dict[str, Any] = {
        "study_name": path.parent.name,
        "storage": f"sqlite:///{path.absolute()}",
    }
    search = {
        "fixed configuration": run_name(base),
        "goal": f"{goal} {metric}",
        **{key: str(values) for key, values in space.ranges.items()},
    }
    study = optuna.create_study(**location, direction=goal, pruner=pruner, load_if_exists=True)
    if (recorded := study.user_attrs.get("search", search)) != search:
        if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            raise ConfigError(*_differences(path, recorded, search))
        optuna.delete_study(**location)
        study = optuna.create_study(**location, direction=goal, pruner=pruner)
    study.set_user_attr("search", search)
    return study


def _differences(path: Path, recorded: Mapping[str, str], search: Mapping[str, str]) -> list[str]:
    changes = "; ".join(
        f"{key}: {recorded.get(key, 'none')} -> {search.get(key, 'none')}"
        for key in {**recorded, **search}
        if recorded.get(key) != search.get(key)
    )
    return [
        f"{path} holds a search that differs in {changes}",
        "go on with the command as it was, or start another search with sweep.name=<name>",
    ]


def recorded_trials(study: Study) -> dict[int, FrozenTrial]:
    """Return the trials of earlier commands by point; fail those that were never completed."""
    while any(trial.state == TrialState.WAITING for trial in study.get_trials(deepcopy=False)):
        study.ask()  # enqueued, and the command was killed before it asked for it
    trials: dict[int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False):
        if "point" in trial.user_attrs:
            trials[trial.user_attrs["point"]] = trial
        elif not trial.state.is_finished():
            study.tell(trial.number, state=TrialState.FAIL)
    return trials
