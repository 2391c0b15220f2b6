"""The command `slurm <overrides> --<option of sbatch> ...`: writes, or submits, a job script."""

from __future__ import annotations

import argparse
import importlib.resources
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.arguments import Parser
from trainer.cli.compose import compose_config
from trainer.cli.overrides import rewrite
from trainer.config.schema import Experiment
from trainer.errors import DONE, ConfigError
from trainer.launch import remote_run
from trainer.launch.run_context import resolve
from trainer.runs.identity import run_path
from trainer.runs.status import State, run_status
from trainer.sweep.driver import prepare, print_summary
from trainer.text import format_duration

_SAVE_SECS = 120
_EARLY_SECS = 60  # Slurm sends the signal up to a minute early


def run(arguments: Sequence[str]) -> int:
    """Print the job script of a run or a sweep, or submit it and return the exit code of sbatch."""
    args = _parse(arguments)
    script = _sweep_script(args) if args.multirun else _run_script(args)
    if not args.submit or not script:
        print(script, end="")
        return DONE
    try:
        return subprocess.run(["sbatch"], input=script, text=True, check=False).returncode
    except FileNotFoundError:
        raise ConfigError(
            "--submit: there is no sbatch here; leave it out, and submit the script where there is"
        ) from None


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return our options, `sbatch`: the lines of all others, and `overrides`: those of the run."""
    parser = Parser(
        "slurm",
        "Every other option is one of sbatch: --partition=gpu --gres=gpu:1. By default: a node for "
        f"each process of the strategy, one task on each, and SIGTERM {_SAVE_SECS} s before the "
        "time limit (--signal).",
    )
    parser.add_argument("-m", "--multirun", action="store_true", help="a task for each point")
    parser.add_argument("--submit", action="store_true", help="submit it with sbatch")
    parser.add_argument("--config-dir", help="a directory with more choices")
    parser.add_argument("-N", "--nodes", type=int, metavar="N", help="the number of nodes")
    parser.add_argument("-t", "--time", help="the time limit: 8:00:00")
    parser.add_argument("--signal", default=f"TERM@{_SAVE_SECS}")
    # Not as its second name: argparse would take sbatch's `-c` for it.
    words = ["--config-dir" if word == "-cd" else word for word in arguments]
    args, words = parser.parse_known_args(words)
    if args.config_dir:
        args.config_dir = os.path.abspath(os.path.expanduser(args.config_dir))
    args.overrides = []
    args.sbatch = []
    has_value = True
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            args.sbatch.append(f"{name}={shlex.quote(value)}" if equals else word)
        elif equals or has_value:
            args.overrides.append(word)
        else:
            # An override always has a `=`, so a word without one is the value of the option.
            args.sbatch[-1] += f" {shlex.quote(word)}"
        has_value = bool(equals) or not word.startswith("-")
    return args


def _run_script(args: argparse.Namespace) -> str:
    experiment = compose_config(*rewrite(args.overrides, args.config_dir)).load()
    command = shlex.join([*_program(args), *args.overrides])
    return _script(args, run_path(experiment).name, [experiment], command)


def _sweep_script(args: argparse.Namespace) -> str:
    """Return the job script of the points that are not done, an array; empty: all are done."""
    first, search, folder = prepare(*rewrite(args.overrides, args.config_dir))
    if not search.points:
        raise ConfigError(
            f"search ({first.choices['search']}) must be grid with slurm -m: it chooses points by "
            "the results of others; run it in one job with sbatch --wrap"
        )
    if first.sweep.on_error != "continue":
        raise ConfigError(
            f"sweep.on_error ({first.sweep.on_error}) must be continue with slurm -m; "
            "the same command retries what failed"
        )
    for note in search.notes:
        print(note, file=sys.stderr)
    points = [
        point
        for point in search.points
        if run_status(point.path, point.experiment).state not in (State.DONE, State.RUNNING)
    ]
    if args.submit or not points:
        print_summary(folder, first.sweep, search.points, {})
    if not points:
        return ""
    overrides = {point.number: point.own_overrides for point in points}
    cases = "".join(
        f"  {number}) point=({shlex.join(words)}) ;;\n" for number, words in overrides.items()
    )
    cases += "  *) echo 'error: this is a job array; submit it with sbatch' >&2; exit 2 ;;\n"
    limit = f"%{first.sweep.jobs}" if first.sweep.jobs > 1 else ""
    args.sbatch.insert(0, f"--array={','.join(map(str, overrides))}{limit}")
    return _script(
        args,
        folder.name,
        [point.experiment for point in points],
        f'{shlex.join(_program(args))} "${{point[@]}}"',
        f'case "$SLURM_ARRAY_TASK_ID" in\n{cases}esac\n',
    )


def _program(args: argparse.Namespace) -> list[str]:
    """Return the words that start this program in a job."""
    python = [sys.executable] if sys.argv[0].endswith(".py") else []
    flags = ["--config-dir", args.config_dir] if args.config_dir else []
    return [*python, str(Path(sys.argv[0]).absolute()), *flags]


def _script(
    args: argparse.Namespace,
    name: str,
    experiments: Sequence[Experiment],
    command: str,
    point: str = "",
) -> str:
    """Return a job script.

    Args:
        point: the lines that set the overrides of a task's run.
    """
    if any(experiment.resume == "never" for experiment in experiments):
        raise ConfigError(
            "resume (never) would start afresh each time the job is started again; leave it out"
        )
    sizes = {_num_nodes(args, experiment) for experiment in experiments}
    if len(sizes) > 1:
        raise ConfigError(
            "the points of one array need the same nodes, and these differ: "
            f"{' and '.join(map(str, sorted(sizes)))}; submit a sweep for each"
        )
    [nodes] = sizes
    _check_time(args.time, args.signal)
    options = [
        f"--job-name={shlex.quote(name)}",
        f"--chdir={shlex.quote(os.getcwd())}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        f"--signal={args.signal}",
        *([f"--time={args.time}"] if args.time else []),
        *args.sbatch,  # sbatch takes the last of two
    ]
    script = importlib.resources.files(__package__).joinpath("shells/job.sh")
    return script.read_text(encoding="utf-8").format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        point=point,
        job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if point else "$SLURM_JOB_ID",
        command=command,
    )


def _num_nodes(args: argparse.Namespace, experiment: Experiment) -> int:
    """Return how many nodes a run needs: one for each process, unless a number is requested."""
    strategy, _ = resolve(experiment)
    count = max(1, len(strategy.process_ids(None)))
    nodes = count if args.nodes is None else args.nodes
    if max(nodes, count) > 1:
        remote_run.check(experiment, strategy, "Slurm")
    if nodes < 1:
        raise ConfigError(f"--nodes ({nodes}) must be an integer >= 1")
    if nodes > 1 and not strategy.process_ids(nodes):
        raise ConfigError(
            f"--nodes ({nodes}) must be 1: strategy={experiment.choices['strategy']} trains in one "
            "process; use strategy=multi_worker"
        )
    return int(nodes)


def _check_time(limit: str | None, signal: str) -> None:
    """Check that a job trains before the signal to save: else it would be requeued for ever.

    Raises:
        ConfigError: it does not, or the limit is no time.
    """
    if limit is None:
        return
    secs = _seconds(limit)
    save_secs = int(match[1]) if (match := re.search(r"@([0-9]+)$", signal)) else 0
    if secs < save_secs + _EARLY_SECS:
        raise ConfigError(
            f"--time ({limit}) must be at least {format_duration(save_secs + _EARLY_SECS)}: "
            f"the signal to save comes {save_secs} s before the end (--signal={signal}), and up to "
            f"{_EARLY_SECS} s early"
        )


def _seconds(limit: str) -> int:
    """Return a limit of sbatch (minutes, days-hours, ...) in seconds, or raise a ConfigError."""
    match = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", limit)
    if match is None:
        raise ConfigError(f"--time ({limit}) must be a time, such as 90 (minutes), 8:00:00 or 2-12")
    days, *numbers = match.groups()
    values = [int(number) for number in numbers if number is not None]
    if days is not None:
        hours, minutes, secs = (*values, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + secs
    hours, minutes, secs = {1: (0, *values, 0), 2: (0, *values), 3: tuple(values)}[len(values)]
    return hours * 3600 + minutes * 60 + secs
