"""Decides what a command line asks for: a command, help, a sweep, a run. No TensorFlow."""

from __future__ import annotations

import errno
import importlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from trainer.cli.command_table import COMMANDS
from trainer.cli.error_messages import USER_ERRORS, explain
from trainer.cluster import environment
from trainer.cluster.fork_server import ForkServer
from trainer.config.modes import MODES
from trainer.config.schema import GRID_SEARCH
from trainer.errors import CRASHED, DONE, WRONG_INPUT, ConfigError
from trainer.files import storage_problem
from trainer.text import printable_lines


def main(server: ForkServer | None = None) -> NoReturn:
    """Run the command line in `sys.argv`, and exit with its code."""
    environment.add_working_directory()
    sys.exit(_exit_code(lambda: _dispatch(server)))


def _dispatch(server: ForkServer | None) -> int:
    if (name := sys.argv[1:2]) and name[0] in COMMANDS:
        if "" in sys.argv:
            raise ConfigError(
                f"{name[0]}: an argument is empty, perhaps from an unset shell variable; give a "
                "value, or leave it out"
            )
        module = importlib.import_module(f"trainer.cli.commands.{name[0]}")
        code: int = module.run(sys.argv[2:])
        return code
    return _run(server)


def _run(server: ForkServer | None) -> int:
    # Only now: commands do not compose.
    from omegaconf import OmegaConf

    from trainer.cli import arguments
    from trainer.cli.compose import complete, compose_config
    from trainer.cli.overrides import found_directory, rewrite

    args = arguments.parse(sys.argv[1:])
    if args.help:
        from trainer.cli.commands import help

        return help.show(args)
    if args.shell_completion:
        complete(args.overrides, args.config_dir or found_directory())
        return DONE
    overrides, config_dir = rewrite(args.overrides, args.config_dir)
    if config_dir and config_dir == found_directory() and not (args.config_dir or args.cfg):
        print(f"Your config groups: {Path(config_dir).name}", flush=True)
    if args.multirun:
        from trainer.sweep.driver import run_sweep  # only now: a single run does not need it

        return run_sweep(overrides, config_dir)
    composition = compose_config(overrides, config_dir)
    if args.cfg:
        print(OmegaConf.to_yaml(composition.container()), end="")
        return DONE
    experiment = composition.load()
    if experiment.search["_target_"] != GRID_SEARCH:
        raise ConfigError(f"search ({experiment.choices['search']}) is for a sweep; add -m")
    from trainer.launch.run_context import Command

    command = Command(experiment, composition.overrides, config_dir, server=server)
    run: Callable[[Command], int] = importlib.import_module(MODES[experiment.mode].module).run
    return run(command)


def _exit_code(action: Callable[[], int]) -> int:
    """Return the exit code of `action`.

    An error of the user's or of storage is printed in lines, and any other is a fault of the
    program, printed in full.
    """
    if environment.current().get("HYDRA_FULL_ERROR") == "1":
        return action()
    try:
        return action()
    except USER_ERRORS as error:
        _show_errors(explain(error))
        return WRONG_INPUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            _show_errors(explain(error))
            return WRONG_INPUT
        if problem := storage_problem(error):
            _show_errors([problem])
        else:
            traceback.print_exc()
        return CRASHED


def _show_errors(lines: Iterable[str]) -> None:
    for line in lines:
        error = f"error: {line}"
        if sys.stderr.isatty():
            from trainer.cli.terminal import Terminal  # only now: its import takes long

            Terminal(sys.stderr).show_line(error)
        else:
            print(printable_lines(error), file=sys.stderr)
