"""The choice of a Hydra launcher: `hydra/launcher=submitit_local` or `submitit_slurm`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydra.core.object_type import ObjectType

from trainer.cli.config_loader import config_loader
from trainer.cluster.spec import Cluster
from trainer.config.options.constraints import did_you_mean
from trainer.config.schema import GRID_SEARCH, Experiment
from trainer.errors import ConfigError

_GROUP = "hydra/launcher"
_LAUNCHERS = ("submitit_local", "submitit_slurm")


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that choose a launcher and its options, and all others."""
    settings = [
        override
        for override in overrides
        if override.lstrip("+").startswith((f"{_GROUP}=", "hydra.launcher."))
    ]
    return settings, [override for override in overrides if override not in settings]


def launcher_name(settings: Sequence[str]) -> str | None:
    """Return the chosen launcher; None if there are only options."""
    for override in reversed(settings):
        if override.lstrip("+").startswith(f"{_GROUP}="):
            return override.partition("=")[2]
    return None


def check_launcher(
    settings: Sequence[str],
    experiment: Experiment,
    config_dir: str | None,
    declared: Cluster | None,
) -> None:
    """Check that the chosen launcher is installed and can run this sweep.

    Args:
        settings: the overrides that choose the launcher and its options.
        experiment: the first point.
        config_dir: the user's own folder of choices.
        declared: the cluster that is declared for the points, if any.

    Raises:
        ConfigError: with all problems.
    """
    name = launcher_name(settings)
    if name is None:
        raise ConfigError(
            f"{settings[0]} is an option of a launcher, and none is chosen; "
            f"add {_GROUP}=submitit_local, or use sweep.jobs"
        )
    if name == "basic":
        raise ConfigError(
            f"{_GROUP} (basic) cannot run points in parallel, or resume them; leave it out"
        )
    with config_loader(config_dir) as loader:
        installed = loader.get_group_options(_GROUP, ObjectType.CONFIG)
    if name not in installed and name in _LAUNCHERS:
        raise ConfigError(
            f"{_GROUP} ({name}) is not installed; "
            "install it with: pip install 'steadfast[submitit]'"
        )
    if name not in installed:
        raise ConfigError(
            f"{_GROUP} ({name}): no such launcher; use sweep.jobs, or choose one of: "
            f"{', '.join(_LAUNCHERS)}{did_you_mean(name, _LAUNCHERS)}"
        )
    problems = list(_unsupported_settings(name, experiment, declared))
    if problems:
        raise ConfigError(*problems)


def _unsupported_settings(
    name: str, experiment: Experiment, declared: Cluster | None
) -> Iterator[str]:
    launcher = f"{_GROUP}={name}"
    sweep = experiment.sweep
    if experiment.search["_target_"] != GRID_SEARCH:
        name = experiment.choices["search"]
        yield f"search ({name}) must be grid with {launcher}; leave the launcher out"
    if sweep.jobs != 1:
        yield f"sweep.jobs ({sweep.jobs}) has no effect with {launcher}; leave it out"
    if sweep.on_error != "continue":
        yield (
            f"sweep.on_error ({sweep.on_error}) must be continue with {launcher}; "
            "the same command retries what failed"
        )
    if name == "submitit_slurm" and experiment.resume == "never":
        yield (
            "resume (never) would start a point afresh each time its job is started again; "
            "leave it out"
        )
    if declared:
        yield (
            f"{declared.source} declares a cluster for one point at a time; leave {launcher} out"
        )
