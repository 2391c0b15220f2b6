"""The command `diff <run> <run>`: in which keys two runs differ. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from trainer import identity, rules
from trainer.commands.arguments import Parser, run_at
from trainer.rundir import trained_with
from trainer.tables import aligned

_SAME, _DIFFERENT = 0, 1


def run(arguments: Sequence[str]) -> int:
    """Prints every key that differs between the configurations of two runs, as they were last trained.

    Returns:
        The exit code, as diff(1) has it: 0 if they are the same, 1 if they differ.

    Raises:
        ConfigError: there is no such run.
    """
    parser = Parser("diff", "exit code: 0 if they are the same, 1 if they differ")
    parser.add_argument("runs", nargs=2, metavar="run", help="a run directory")
    first, second = (run_at("diff", given) for given in parser.parse_args(arguments).runs)
    changes = identity.changes(trained_with(first), trained_with(second))
    if not changes:
        print(f"{first} and {second} have the same configuration.")
        return _SAME
    rows = [(change.key, rules.shown(change.before), rules.shown(change.now)) for change in changes]
    print(*aligned([("key", str(first), str(second)), *rows], "<<<"), sep="\n")
    return _DIFFERENT
