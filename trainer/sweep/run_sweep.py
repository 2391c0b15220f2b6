"""Runs the sweep of a command line: checks it, runs its points, writes its summary."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.override_parser.types import Override

from trainer.cli.compose import Composer
from trainer.cluster import environment
from trainer.cluster.spec import Cluster
from trainer.config import directions
from trainer.config.rules.checkpoint import biased_selection
from trainer.config.schema import Experiment, Sweep
from trainer.errors import ConfigError
from trainer.launch import launcher
from trainer.launch.display.terminal import wrapped
from trainer.launch.run_context import Command, resolve
from trainer.runs.identity import run_address
from trainer.runs.provenance import code_warning
from trainer.runs.status import run_status
from trainer.sweep.driver import Driver
from trainer.sweep.live_table import LiveTable
from trainer.sweep.points import resources
from trainer.sweep.points.points import Compose, Point, PointResult, point_composer
from trainer.sweep.points.resources import ResourceShare
from trainer.sweep.search.grid_search import compose_first, expand
from trainer.sweep.search.search import Search, SearchContext, create_search
from trainer.sweep.summary import link_events, summary_folder, summary_text, write_summary


def run_sweep(overrides: list[str], config_dir: str | None) -> int:
    """Run the sweep of a command line.

    Args:
        overrides: the overrides after `trainer.cli.overrides.rewrite`.
        config_dir: the user's own folder of choices.

    Returns:
        The exit code: 0 all points succeeded, 1 not all, 130 or 143 stopped after saving.

    Raises:
        ConfigError: with all problems of all points; nothing has been written.
    """
    first, search, folder = prepare(overrides, config_dir)
    strategy, cluster = resolve(first)
    declared = cluster if cluster.is_declared else None
    if strategy.hosts:
        # It prints the commands for all hosts.
        return launcher.run(Command(first, overrides, config_dir))
    shares, share_notes = _divide_resources(first, search.total, declared)
    search.begin()
    table = LiveTable(search.total, first.sweep)
    driver = Driver(search, first.sweep, shares, config_dir, table)
    bias = biased_selection(first, "sweep" if search.points else "search")
    for note in [*search.notes, *bias, *share_notes]:
        table.print_line(note)
    try:
        return driver.run()
    finally:
        if declared is None or declared.is_chief:
            print_summary(folder, first.sweep, search.points, driver.results)


def prepare(overrides: list[str], config_dir: str | None) -> tuple[Experiment, Search, Path]:
    """Compose and check the points of a sweep; nothing is written.

    Returns:
        The first point, which has all settings of the sweep, the search, and the folder of the
        summary.

    Raises:
        ConfigError: with all problems of all points.
    """
    composer = Composer(config_dir)
    compose = point_composer(composer)
    parsed = composer.parse(overrides)
    first = _compose_first(parsed, compose)
    _check_local(first)
    varied_keys = [item.get_key_element() for item in parsed if item.is_sweep_override()]
    folder = summary_folder(first, varied_keys, overrides)
    return first, create_search(SearchContext(parsed, first, compose, folder)), folder


def _check_local(first: Experiment) -> None:
    """Refuse runs in an object store: they are compared in a folder."""
    if address := run_address(first):
        raise ConfigError(
            f"a sweep (-m) compares its runs in a folder of this machine, not at {address}; "
            "add runs_dir=runs, or train each point by a command of its own"
        )


def _compose_first(parsed: Sequence[Override], compose: Compose) -> Experiment:
    """Return the first point, which has all settings of the sweep, its metric and mode resolved."""
    try:
        first = compose_first(parsed, compose)
        sweep, problem = directions.resolved(first.sweep, first)
        if problem:
            raise ConfigError(problem)
        return replace(first, sweep=sweep)
    except ConfigError:
        if all(item.is_discrete_sweep() for item in parsed if item.is_sweep_override()):
            expand(parsed, compose)
        raise


def _divide_resources(
    first: Experiment, num_points: int, declared: Cluster | None
) -> tuple[list[ResourceShare], list[str]]:
    """Return the resources of each point that trains in parallel, and notes for the user."""
    jobs = min(first.sweep.jobs, num_points)
    if declared and jobs > 1:
        raise ConfigError(
            f"sweep.jobs ({first.sweep.jobs}) must be 1: "
            f"{declared.source} declares a cluster for one point at a time"
        )
    if first.launch.uses_ray:
        return [ResourceShare()] * jobs, []  # Ray divides what its nodes have
    notes = []
    cores = resources.available_cores()
    if cores and jobs > len(cores):
        notes.append(f"{jobs} points at a time share {len(cores)} cores")
    gpus = [] if first.devices.gpus == 0 else environment.visible_gpus()
    return resources.divide(jobs, cores, gpus), notes


def print_summary(
    folder: Path, sweep: Sweep, points: Sequence[Point], results: Mapping[int, PointResult]
) -> None:
    """Write and print the summary of the points that have ended, and of the others of a grid."""
    all_results = {
        point.number: PointResult(point, run_status(point.path, point.experiment))
        for point in points
    }
    all_results.update(results)
    ended = list(all_results.values())
    write_summary(folder, sweep, ended)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in summary_text(sweep, ended, width).splitlines():
        print(wrapped(line, width) if width else line)
    links = link_events(folder, [result.point for result in ended])
    tensorboard = f"TensorBoard: {shlex.join(['tensorboard', '--logdir', str(links)])}\n"
    print(f"{tensorboard if links else ''}Summary: {folder}", flush=True)
    warnings = (code_warning(result.point.path) for result in ended)
    for line in dict.fromkeys(filter(None, warnings)):
        print(f"warning: {line}", flush=True)
