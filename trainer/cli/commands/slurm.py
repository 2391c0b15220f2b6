"""The command `slurm <overrides> --<option of sbatch> ...`: writes, or submits, a job script."""

from __future__ import annotations

import importlib.resources
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer.cli.commands.command_arguments import Parser
from trainer.cli.compose import compose_config, split_hydra
from trainer.cli.overrides import override_key, rewrite
from trainer.cluster.spec import ProcessId
from trainer.config.rules.batch_sizes import divides
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch import remote_run
from trainer.launch.run_context import resolve
from trainer.runs.identity import run_path
from trainer.text import format_duration

_SAVE_SECS = 120
_EARLY_SECS = 60  # Slurm sends the signal up to a minute early
_SHORT = {"-N": "nodes", "-J": "job-name", "-D": "chdir", "-t": "time"}
"""Short options of those that are set here; all others are passed on as they are."""

_CHOICE = """\
# The batch can be divided among so many tasks; the largest number that there are nodes for.
for tasks in {sizes}; do if [ "$tasks" -le "$SLURM_JOB_NUM_NODES" ]; then break; fi; done
"""
_WORKERS = "strategy.workers"


@dataclass
class _Words:
    """The words after `slurm`.

    Attributes:
        options: those of sbatch, as written or by their long names; None: without a value.
        overrides: those of the run.
        config_dir: the user's own folder of choices.
        submit: whether to submit the script.
    """

    options: dict[str, str | None] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    config_dir: str | None = None
    submit: bool = False


def run(arguments: Sequence[str]) -> int:
    """Print the job script of a run, or submit it.

    Returns:
        The exit code: 0, or that of sbatch.

    Raises:
        ConfigError: the run cannot work, or an option contradicts it.
    """
    if {"-h", "--help"} & set(arguments):
        parser = Parser(
            "slurm",
            "Every other option is one of sbatch: --nodes=4 --time=8:00:00 --partition=gpu. By "
            "default: a node for each process of the strategy, one task on each, and SIGTERM "
            f"{_SAVE_SECS} s before the time limit (--signal).",
        )
        parser.add_argument("--submit", action="store_true", help="submit it with sbatch")
        parser.add_argument("overrides", nargs="*", help="those of the run")
        parser.parse_args(arguments)
    words = _parse(arguments)
    experiment = _experiment(words)
    if _node_range(words)[0] == 1 and _takes_one_task(words, experiment):
        # The command that gets one node alone starts one process on it, as on each of several.
        words.overrides.append(f"{_WORKERS}=1")
        experiment = _experiment(words)
    script = _script(words, experiment)
    if not words.submit:
        print(script, end="")
        return 0
    try:
        return subprocess.run(["sbatch"], input=script, text=True, check=False).returncode
    except FileNotFoundError:
        raise ConfigError(
            "--submit: there is no sbatch here; leave it out, and submit the script where there is"
        ) from None


def _experiment(words: _Words) -> Experiment:
    overrides, config_dir = rewrite(words.overrides, words.config_dir)
    return split_hydra(compose_config(overrides, config_dir)).load()


def _parse(arguments: Sequence[str]) -> _Words:
    """Divide the words into options of sbatch, and words of the run's own command."""
    words = _Words()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word[:2] in _SHORT and len(word) > 2:
            # As sbatch takes them: `-N2`.
            rest.insert(0, word[2:].removeprefix("="))
            word = word[:2]
        name, equals, value = word.partition("=")
        if word in ("-m", "--multirun"):
            raise ConfigError(
                f"slurm ({word}): this is the job of one run; "
                "for a sweep use -m hydra/launcher=submitit_slurm"
            )
        if word == "--submit":
            words.submit = True
        elif name in ("--config-dir", "-cd"):
            path = value if equals else "".join(rest[:1])
            del rest[: 0 if equals else 1]
            words.config_dir = os.path.abspath(os.path.expanduser(path))
        elif word.startswith("-"):
            # An override always has a `=`, so a word without one is the value of this option.
            has_value = not equals and rest and not rest[0].startswith("-") and "=" not in rest[0]
            name = _SHORT.get(name, name.removeprefix("--"))
            words.options[name] = rest.pop(0) if has_value else value if equals else None
        else:
            words.overrides.append(word)
    return words


def _script(words: _Words, experiment: Experiment) -> str:
    """Return the job script."""
    if experiment.resume == "never":
        raise ConfigError(
            "resume (never) would start afresh each time the job is started again; leave it out"
        )
    nodes, sizes = _nodes(words, experiment)
    options = {
        "job-name": run_path(experiment).name,
        "chdir": os.getcwd(),
        "nodes": nodes,
        "ntasks-per-node": "1",
        "requeue": None,
        "open-mode": "append",
        "signal": f"TERM@{_SAVE_SECS}",
    }
    if "-" in nodes:
        # Slurm counts the tasks on the smallest number of nodes, and gives no more of them.
        del options["ntasks-per-node"]
    options.update(words.options)
    _check_time(options.get("time"), options["signal"] or "")
    program = [sys.executable] if sys.argv[0].endswith(".py") else []
    path = str(Path(sys.argv[0]).absolute())
    flags = ["--config-dir", words.config_dir] if words.config_dir else []
    script = importlib.resources.files(__package__).joinpath("shells/job.sh")
    return script.read_text(encoding="utf-8").format(
        options="\n".join(_option_lines(options)),
        choice=_CHOICE.format(sizes=" ".join(map(str, sizes))) if sizes else "",
        size=' --nodes="$tasks" --ntasks="$tasks"' if sizes else "",
        command=shlex.join([*program, path, *flags, *words.overrides]),
    )


def _option_lines(options: dict[str, str | None]) -> Iterator[str]:
    for name, value in options.items():
        if name.startswith("-"):  # a short one
            yield f"#SBATCH {name}" + (f" {shlex.quote(value)}" if value else "")
        else:
            yield f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value is not None else "")


def _node_range(words: _Words) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes that are asked for; 0: none is."""
    if "nodes" not in words.options:
        return 0, 0
    text = words.options["nodes"] or ""
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise ConfigError(f"--nodes ({text}) must be an integer >= 1 or a range, such as 1-4")
    return first, last


def _takes_one_task(words: _Words, experiment: Experiment) -> bool:
    """Return whether a command for several numbers of nodes needs to be told to use one."""
    is_range = len(set(_node_range(words))) > 1
    is_given = any(override_key(word) == _WORKERS for word in words.overrides)
    process_ids = resolve(experiment)[0].process_ids(None)
    return is_range and not is_given and bool(process_ids) and _are_equal(process_ids)


def _nodes(words: _Words, experiment: Experiment) -> tuple[str, list[int]]:
    """Return how many nodes the job needs: a number, or a range.

    Returns:
        The option, and the numbers of tasks among which the batch can be divided, the largest
        first, if there are others.
    """
    strategy, _ = resolve(experiment)
    first, last = _node_range(words)
    if max(last, len(strategy.process_ids(None))) > 1:
        remote_run.check(experiment, strategy, "Slurm")
    if not last:
        return str(max(1, len(strategy.process_ids(None)))), []
    for count in {first, last} - {1}:
        if not strategy.process_ids(count):
            choice = experiment.choices["strategy"]
            raise ConfigError(
                f"--nodes ({words.options['nodes']}) must be 1: strategy={choice} trains in one "
                "process; use strategy=multi_worker"
            )
    if first == last or not _are_equal(strategy.process_ids(last)):
        return words.options["nodes"] or "", []
    if experiment.batch.per_replica is not None:
        raise ConfigError(
            f"--nodes ({first}-{last}) needs a batch that is the same on fewer nodes; use "
            "batch.global_size instead of batch.per_replica"
        )
    fitting = [n for n in range(last, first - 1, -1) if divides(experiment.batch, n)]
    if first not in fitting:
        raise ConfigError(
            f"--nodes ({first}-{last}) must begin with a number of workers that the batch can be "
            f"divided among: one of {', '.join(map(str, reversed(fitting))) or 'none of these'}"
        )
    return f"{first}-{last}", fitting if len(fitting) <= last - first else []


def _are_equal(process_ids: Sequence[ProcessId]) -> bool:
    """Return whether all processes do the same, each with its part of the batch."""
    return {process_id.job for process_id in process_ids} == {"worker"}


def _check_time(limit: str | None, signal: str) -> None:
    """Check that a job trains before it is told to save: else it is started again for ever.

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
    """Return a time limit of sbatch in seconds: minutes, minutes:seconds, days-hours and so on.

    Raises:
        ConfigError: it is none of them.
    """
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
