"""The command line: composes the experiment, checks it, and hands it over; a wrong one is one clear line. No TensorFlow."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from trainer import arguments, config, helptext
from trainer.arguments import Arguments
from trainer.choices import Choices
from trainer.commands import COMMANDS
from trainer.composition import compose as compose
from trainer.composition import composed
from trainer.errors import ConfigError, StorageError
from trainer.exitcodes import CRASHED, DONE, WRONG_INPUT
from trainer.explain import EXPECTED, explain
from trainer.overrides import override_key, rewrite
from trainer.process import WorkerProcess
from trainer.searchpath import searched

_FULL_ERROR = "HYDRA_FULL_ERROR"
_NOTHING_MADE = ("hydra.mode=RUN", "hydra.run.dir=.", "hydra.output_subdir=null", "hydra.job.chdir=false")
"""Whatever a user's file says of them: Hydra makes no directories here."""


def main(spare: WorkerProcess | None = None) -> NoReturn:
    """Runs the command line in `sys.argv`, and leaves with its exit code.

    Args:
        spare: a worker process that has been started already.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not have it: a user's own package is named in `_target_`
    if _wants_tracebacks():
        sys.exit(_front(spare))
    # Hydra itself has nothing but words for a wrong command line: its ValueError and OSError are the user's to mend too.
    sys.exit(_guarded(lambda: _front(spare), *EXPECTED, ValueError, OSError, RecursionError))


def _front(spare: WorkerProcess | None) -> int:
    """Rewrites the command line, then lets Hydra run it, unless it asks for something else; returns the exit code."""
    if (name := sys.argv[1:2]) and name[0] in COMMANDS:
        code: int = importlib.import_module(f"trainer.commands.{name[0]}").run(sys.argv[2:])
        return code
    args = arguments.parse(sys.argv[1:])
    if args.help:
        return _help(args)
    overrides, config_dir = rewrite(args.overrides, args.config_dir)
    if args.multirun:
        from trainer.sweep import driver  # only now: neither --help nor a single run needs it

        return driver.run(overrides, config_dir)
    code, given, plain = DONE, sys.argv, _wants_tracebacks()

    def job(cfg: DictConfig) -> None:
        nonlocal code
        sys.argv = given  # Hydra has read its own; the run's record tells the user's
        code = _run(cfg, config_dir, spare) if plain else _guarded(lambda: _run(cfg, config_dir, spare), *EXPECTED)

    with searched(config_dir), _full_errors():
        try:
            sys.argv = [given[0], *overrides, *_NOTHING_MADE, *args.shows]
            hydra.main(version_base="1.3", config_path="pkg://trainer.conf", config_name="config")(job)()
        finally:
            sys.argv = given
    return code


def _help(args: Arguments) -> int:
    """Prints the page that is asked for: the first one, or one about groups and keys, `optimizer` or `optimizer=sgd`."""
    overrides, config_dir = rewrite([item for item in args.overrides if "=" in item], args.config_dir)
    found, chosen = composed(overrides, config_dir)
    topics = dict.fromkeys(override_key(item) for item in args.overrides if not item.startswith("hydra"))
    program = "python train.py" if sys.argv[0].endswith(".py") else Path(sys.argv[0]).name
    container: Any = OmegaConf.to_container(found)
    print(helptext.render(program, list(topics), container, Choices(config_dir, chosen)))
    return DONE


def _run(cfg: DictConfig, config_dir: str | None, spare: WorkerProcess | None) -> int:
    settings = HydraConfig.get()
    experiment = config.load(cfg, settings.runtime.choices)
    if experiment.search.method != "grid":
        raise ConfigError(f"search.method ({experiment.search.method}) is for our own sweeps; add -m")
    given = [str(item) for item in settings.overrides.task]
    if experiment.mode == "verify":
        from trainer import verify

        return verify.run(experiment, given, config_dir)
    from trainer import launch  # only now: neither --help nor an error needs it

    return launch.run(experiment, given, config_dir, spare)


def _wants_tracebacks() -> bool:
    return os.environ.get(_FULL_ERROR) == "1"


def _guarded(action: Callable[[], int], *expected: type[BaseException]) -> int:
    """Does `action` and gives its exit code; an error of the user's is told in lines, one of ours by its traceback."""
    try:
        return action()
    except expected as error:
        for line in explain(error):
            print(f"error: {line}", file=sys.stderr)
        return WRONG_INPUT
    except StorageError as error:
        print(f"error: {error}", file=sys.stderr)
        return CRASHED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:
        traceback.print_exc()
        return CRASHED


@contextlib.contextmanager
def _full_errors() -> Iterator[None]:
    """Keeps Hydra from printing errors and leaving by itself."""
    before: Any = os.environ.get(_FULL_ERROR)
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = before
