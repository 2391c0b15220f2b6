"""The command `diff [<run> <run>]`: compares the keys and the final variables of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import default_runs, run_at
from trainer.cli.terminal import Terminal
from trainer.config.options import constraints
from trainer.errors import ConfigError
from trainer.launch.processes import ask_module
from trainer.runs import identity
from trainer.runs.checkpoint_marker import committed_steps, read_marker
from trainer.runs.directory import trained_config
from trainer.text import printable

_SAME = 0
_DIFFERENT = 1


def run(arguments: Sequence[str]) -> int:
    """Print every key that differs between two runs, as they were last trained, and the variables.

    Returns:
        The exit code, as diff(1) has it: 0 if they are the same, 1 if they differ.
    """
    parser = Parser("diff", "exit code: 0 if they are the same, 1 if they differ")
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="run",
        help="two run directories; the newest two of runs, unless they are named",
    )
    names = parser.parse_args(arguments).runs
    runs = names or default_runs("diff")[:2][::-1]
    if len(runs) != 2:
        what = f"compares two runs, not {len(runs)}" if names else "needs two runs in runs"
        raise ConfigError(f"diff {what}; write diff <run> <run> with two run directories")
    first, second = (run_at("diff", str(path)) for path in runs)
    rows = _rows(trained_config(first), trained_config(second))
    if rows:
        names = [run.name if first.parent == second.parent else str(run) for run in (first, second)]
        Terminal().show_table([("key", *names), *rows], "<<<")
    else:
        print(printable(f"{first} and {second} have the same configuration."))
    return _DIFFERENT if _variables_differ(first, second) or rows else _SAME


def _rows(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return key and both values of each difference.

    A choice is compared by its target. An option that only one of two choices has is shown where
    it is not the default.
    """
    changed = {**identity.differing(before), **identity.differing(now)}
    rows: dict[str, Sequence[Any]] = {}
    for change in identity.changes(before, now):
        group, _, option = change.key.partition(".")
        choices = [values.get(f"choices.{group}") for values in (before, now)]
        if choices[0] == choices[1]:
            rows[change.key] = change.shown
            continue
        rows.setdefault(group, choices)
        if group != "fault" and option != "_target_" and change.key in changed:
            rows[change.key] = change.shown
    return [(key, *map(constraints.format_plain, values)) for key, values in rows.items()]


def _variables_differ(first: Path, second: Path) -> bool:
    """Compare the variables of the last step that both runs have saved, in a line."""
    folders = [run / "checkpoints" for run in (first, second)]
    steps = set.intersection(*(set(committed_steps(folder)) for folder in folders))
    if not steps:
        return False
    step = max(steps)
    own, other = (read_marker(folder, step)["variables"] for folder in folders)
    num_differing = sum(own.get(name) != other.get(name) for name in {*own, *other})
    if not num_differing:
        print(f"All {len(own)} variables of step {step} are equal bit for bit.")
        return False
    prefixes = [str(folder / f"ckpt-{step}") for folder in folders]
    largest = ask_module(["trainer.worker.checkpoint_difference", *prefixes]).value
    amount = f", by {largest[1]:.1e} at most, in {largest[0]}" if largest else ""
    print(f"{num_differing} of {len(own)} variables of step {step} differ{amount}.")
    return True
