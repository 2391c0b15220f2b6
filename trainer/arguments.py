"""The flags of the command line, in any order among the overrides. No TensorFlow."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NoReturn

import trainer
from trainer.errors import ConfigError
from trainer.rules import broken, did_you_mean
from trainer.schema import GROUPS, Experiment

FLAGS = ("--help", "--multirun", "--config-dir", "--cfg", "--resolve", "--version")
_KEYS = {item.name for item in fields(Experiment)} | set(GROUPS)
CFG = ("job", "hydra", "all")


@dataclass(frozen=True)
class Arguments:
    """A command line.

    Attributes:
        overrides: what is no flag.
        help: whether help is asked for.
        multirun: whether it is a sweep.
        config_dir: the user's own directory of choices, as an absolute path.
        shows: the flags with which Hydra shows something and runs nothing.
    """

    overrides: list[str]
    help: bool
    multirun: bool
    config_dir: str | None
    shows: list[str]


def parse(given: Sequence[str]) -> Arguments:
    """Takes a command line apart.

    Raises:
        ConfigError: a flag is unknown or lacks its value, or flags do not go together.
    """
    args, unknown = _parser().parse_known_intermixed_args(given)
    if unknown:
        if (flag := unknown[0].lstrip("-")).partition("=")[0].partition(".")[0] in _KEYS:
            raise ConfigError(f"{unknown[0]} is a key, no flag; write {flag if '=' in flag else f'{flag}=<value>'}")
        # Without their dashes, which make any two flags alike.
        hint = did_you_mean(unknown[0].partition("=")[0].strip("-"), [flag.strip("-") for flag in FLAGS])
        hint = hint.replace(" '", " '--") or "; see --help"
        raise ConfigError(f"unknown flag {unknown[0]}{hint}")
    if line := broken(args.cfg, " | ".join(CFG)):
        raise ConfigError(f"--cfg ({args.cfg}) {line}")
    if args.multirun and (args.cfg or args.help):
        raise ConfigError(f"{'--help' if args.help else '--cfg'} shows one run; leave out -m, and give each key one value")
    if args.resolve and not args.cfg:
        raise ConfigError("--resolve goes with --cfg job; add it")
    if args.config_dir == "":
        raise ConfigError("--config-dir needs a value; see --help")
    config_dir = args.config_dir and os.path.abspath(os.path.expanduser(args.config_dir))
    shows = [f"--cfg={args.cfg}"] if args.cfg else []
    return Arguments(args.overrides, args.help, args.multirun, config_dir, [*shows, *(["--resolve"] if args.resolve else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--version", action="version", version=f"steadfast {trainer.__version__}")
    parser.error = _fail  # type: ignore[method-assign]
    return parser


def _fail(message: str) -> NoReturn:
    found = re.match(r"argument (--[\w-]+).*: (expected one|ignored explicit)", message)
    needs = {"expected one": "needs a value", "ignored explicit": "takes no value"}
    raise ConfigError(f"{f'{found[1]} {needs[found[2]]}' if found else message}; see --help")
