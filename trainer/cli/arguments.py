"""Parses the command line: flags, in any order among the overrides. No TensorFlow."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NoReturn

import trainer
from trainer.config.schema import GROUPS, Experiment
from trainer.errors import ConfigError
from trainer.text import did_you_mean

FLAGS = ("--help", "--multirun", "--config-dir", "--cfg", "--shell-completion", "--version")
_KEYS = {item.name for item in fields(Experiment)} | set(GROUPS)
CFG = "job"
"""What `--cfg` prints: the configuration of the experiment."""


@dataclass(frozen=True)
class Arguments:
    """A command line.

    Attributes:
        config_dir: the user's own directory of choices, as an absolute path.
    """

    overrides: list[str]
    help: bool
    multirun: bool
    config_dir: str | None
    cfg: bool
    shell_completion: bool


def parse(words: Sequence[str]) -> Arguments:
    """Parse the words after the program's name.

    Raises:
        ConfigError: a flag is unknown, lacks its value, or excludes another.
    """
    for word in words:
        if any("\udc80" <= letter <= "\udcff" for letter in word):  # bytes that are no text
            raise ConfigError(
                f"{word} is not UTF-8; rename the file, or link to it by a name that is"
            )
    args, unknown = _parser().parse_known_intermixed_args(words)
    if unknown:
        raise _unknown_flag(unknown[0])
    if args.cfg not in (None, CFG):
        raise ConfigError(f"--cfg ({args.cfg}) must be {CFG}")
    if args.multirun and (args.cfg or args.help):
        flag = "--help" if args.help else "--cfg"
        raise ConfigError(f"{flag} shows one run; leave out -m, and give each key one value")
    if args.config_dir == "":
        raise ConfigError("--config-dir needs a value; see --help")
    config_dir = args.config_dir and os.path.abspath(os.path.expanduser(args.config_dir))
    return Arguments(
        args.overrides,
        args.help,
        args.multirun,
        config_dir,
        args.cfg is not None,
        args.shell_completion,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("--version", action="version", version=f"steadfast {trainer.__version__}")
    parser.error = _fail  # type: ignore[method-assign]
    return parser


def _unknown_flag(word: str) -> ConfigError:
    flag = word.lstrip("-")
    if flag.partition("=")[0].partition(".")[0] in _KEYS:
        override = flag if "=" in flag else f"{flag}=<value>"
        return ConfigError(f"{word} is a key, no flag; write {override}")
    # Without their dashes, which make any two flags similar.
    hint = did_you_mean(word.partition("=")[0].strip("-"), [name.strip("-") for name in FLAGS])
    hint = hint.replace(" '", " '--") or "; see --help"
    return ConfigError(f"unknown flag {word}{hint}")


def _fail(message: str) -> NoReturn:
    problems = {"expected one": "needs a value", "ignored explicit": "takes no value"}
    if match := re.match(r"argument (--[\w-]+).*: (expected one|ignored explicit)", message):
        message = f"{match[1]} {problems[match[2]]}"
    raise ConfigError(f"{message}; see --help")
