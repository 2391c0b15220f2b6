"""The command `diff [<run> <run>]`: lists the keys in which two runs differ. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.cli.commands.command_arguments import Parser, default_runs, run_at
from trainer.config.options import constraints
from trainer.errors import ConfigError
from trainer.runs import identity
from trainer.runs.directory import trained_config
from trainer.text import align_columns, printable

_SAME = 0
_DIFFERENT = 1


def run(arguments: Sequence[str]) -> int:
    """Print every key that differs between two runs, as they were last trained.

    Returns:
        The exit code, as diff(1) has it: 0 if they are the same, 1 if they differ.

    Raises:
        ConfigError: there is no such run, or only one is named.
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
    changes = identity.changes(trained_config(first), trained_config(second))
    if not changes:
        print(printable(f"{first} and {second} have the same configuration."))
        return _SAME
    rows = [(change.key, *map(constraints.format_value, change.shown)) for change in changes]
    print(*align_columns([("key", str(first), str(second)), *rows], "<<<"), sep="\n")
    return _DIFFERENT
