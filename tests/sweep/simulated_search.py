"""A search without training: a function gives the metrics of a point."""

import copy
import gc
import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from sqlalchemy import event
from sqlalchemy.engine import Engine

from trainer.cli.compose import compose as compose_with_hydra
from trainer.config.directions import resolved
from trainer.errors import ConfigError
from trainer.runs.status import RunStatus, State
from trainer.sweep.search import SearchContext, create_search

optuna = pytest.importorskip("optuna")

RATE_RANGE = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
SIZE_RANGE = "batch.global_size=int(interval(16,128))"
MODEL_CHOICE = "model=cnn,softmax"
STEPS = (10, 20, 30)
BASE = compose_with_hydra([])
TARGETS = {
    "random": "trainer.sweep.search.RandomSearch",
    "optuna": "trainer.sweep.optuna_search.OptunaSearch",
}


@event.listens_for(Engine, "connect")
def disable_fsync(connection, record):
    """Save time: tests kill a process, not the machine."""
    connection.execute("PRAGMA synchronous=OFF")


def parse(*overrides):
    return OverridesParser.create().parse_overrides(list(overrides))


def compose(overrides):
    """Compose the keys that these tests vary, without Hydra, which is slow."""
    experiment = copy.deepcopy(BASE)
    for key, value in (override.split("=", 1) for override in overrides):
        if key == "model":
            experiment.choices |= {"model": value}
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


def open_search(folder, *overrides, method="optuna", trials=10, **settings):
    """Return a search; settings are keys of `search` and `sweep`."""
    gc.collect()  # an earlier search of the same folder must have released its lock
    base = copy.deepcopy(BASE)
    base.choices |= {"search": method}
    base.search = {"_target_": TARGETS[method], "trials": trials}
    for key, value in settings.items():
        if hasattr(base.sweep, key):
            setattr(base.sweep, key, value)
        else:
            base.search[key] = value
    base.sweep, problem = resolved(base.sweep, base)
    assert problem is None
    parsed = parse(*(overrides or (RATE_RANGE, MODEL_CHOICE)))
    search = create_search(SearchContext(parsed, base, compose, folder))
    search.begin()
    return search


def train(point, search=None, steps=STEPS):
    """Return the outcome of a point: best with a learning rate of 0.01 and the cnn."""
    rate = point.experiment.optimizer["learning_rate"]
    best = 1 - abs(math.log10(rate) + 2) / 4 - 0.1 * (point.experiment.choices["model"] != "cnn")
    for step in steps:
        metrics = {"accuracy": best * step / steps[-1], "loss": 1 - best * step / steps[-1]}
        if search and search.should_prune(point, step, metrics):
            return RunStatus(State.PRUNED, step, metrics)
    return RunStatus(State.DONE, steps[-1], metrics)


def run_search(search, limit=1000, train_point=train):
    """Run up to `limit` points of a search; return label and state of each."""
    results = []
    while len(results) < limit and (point := search.next_point()):
        outcome = point.pruned or train_point(point, search)
        search.record_outcome(point, outcome)
        results.append((point.label, outcome.state.value))
    return results


def load_study(folder):
    return optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / 'study.db'}")


def load_trials(folder):
    return load_study(folder).get_trials()
