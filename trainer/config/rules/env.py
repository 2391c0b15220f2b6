"""An environment, `env=<choice>`, instead of a dataset: what of the configuration goes with it.

No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from trainer.config.modes import MODES
from trainer.config.schema import Experiment


def data_group(experiment: Experiment) -> str:
    """Return the group that says what is trained on: `env` or `dataset`."""
    return "dataset" if experiment.env is None else "env"


def absent(experiment: Experiment) -> tuple[str, ...]:
    """Return the groups that need no value: those of an environment, or the dataset."""
    return ("env", "buffer") if experiment.env is None else ("dataset",)


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    if experiment.env is None:
        return
    env = (experiment.choices or {}).get("env")
    if find_spec("gymnasium") is None:
        yield f"env ({env}) needs gymnasium, which is missing; pip install 'steadfast[gymnasium]'"
    modes = [name for name, mode in MODES.items() if mode.with_env]
    if experiment.mode not in modes:
        yield (
            f"mode ({experiment.mode}) cannot be used with env ({env}): what actors send is "
            f"another in each run, and no split can be predicted; use one of {', '.join(modes)}"
        )
    if experiment.train.steps_per_epoch is None:
        yield (
            f"train.steps_per_epoch (null) must be set with env ({env}), which has no pass over "
            "the data; add train.steps_per_epoch=100"
        )
    for key, value, reason, fix in _refused(experiment):
        if value:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"{key} ({shown}) cannot be used with env ({env}): {reason}; {fix}"


def _refused(experiment: Experiment) -> Iterator[tuple[str, Any, str, str]]:
    """Yield key, value, reason and fix of what is refused where the value is true."""
    rollback = experiment.divergence.action == "rollback" and "rollback"
    no_samples = "frames of actors are seen once"
    yield "divergence.action", rollback, no_samples, "add divergence.action=skip"
    yield "batch.shards", experiment.batch.shards, "no run repeats", "add batch.shards=null"
    names = ", ".join(experiment.metrics)
    yield "metrics", names, "they are of labels", "add metrics=[]"
    sidecar = experiment.evaluate.sidecar
    yield "evaluate.sidecar", sidecar, "it evaluates a dataset", "add evaluate.sidecar=false"
    inline = experiment.trains and experiment.launch.inline
    yield "launch.inline", inline, "actors are processes", "add launch.inline=false"
    for name in ("histograms", "images", "misclassified"):
        key = f"summary.{name}"
        value = getattr(experiment.summary, name)
        fix = f"add {key}={0 if name == 'misclassified' else 'null'}"
        yield key, value, no_samples, fix
