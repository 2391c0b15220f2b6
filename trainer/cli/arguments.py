"""Parses the command line: flags, in any order among the overrides. No TensorFlow."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import NoReturn

import trainer
from trainer.cli.command_table import COMMANDS
from trainer.config.schema import GROUPS, Experiment
from trainer.errors import ConfigError
from trainer.text import did_you_mean

_KEYS = {item.name for item in fields(Experiment)} | set(GROUPS)


class Parser(argparse.ArgumentParser):
    """Parses the words of a command, or without a name of a run; a wrong one is a `ConfigError`."""

    def __init__(self, name: str = "", epilog: str = "") -> None:
        super().__init__(
            prog=name or None,
            usage=None if name else "see --help",
            description=f"Shows {COMMANDS[name][1]}." if name else None,
            epilog=epilog,
            add_help=bool(name),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error, with the usage, as a ConfigError."""
        usage = " ".join(self.format_usage().split())
        prefix, _, rest = message.partition(": ")
        if prefix == "unrecognized arguments" and rest.startswith("-"):
            word = rest.split()[0]
            options = [name.strip("-") for name in self._option_string_actions]
            # Without their dashes, which make any two options alike.
            hint = did_you_mean(word.partition("=")[0].strip("-"), options).replace(" '", " '--")
            raise ConfigError(f"unknown option {word}{hint or f'; {usage}'}")
        raise ConfigError(f"{message}; {usage}")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after the program's name: `overrides`, and the flags.

    Raises:
        ConfigError: a flag is unknown, lacks its value, or excludes another.
    """
    for word in words:
        if any("\udc80" <= letter <= "\udcff" for letter in word):  # bytes that are no text
            raise ConfigError(
                f"{word} is not UTF-8; rename the file, or link to it by a name that is"
            )
    parser = Parser()
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("--version", action="version", version=f"steadfast {trainer.__version__}")
    args, unknown = parser.parse_known_intermixed_args(words)
    for word in unknown:
        flag = word.lstrip("-")
        if flag.partition("=")[0].partition(".")[0] in _KEYS:
            override = flag if "=" in flag else f"{flag}=<value>"
            raise ConfigError(f"{word} is a key, no option; write {override}")
        parser.error(f"unrecognized arguments: {word}")
    if args.multirun and (args.cfg or args.help):
        flag = "--help" if args.help else "--cfg"
        raise ConfigError(f"{flag} shows one run; leave out -m, and give each key one value")
    if args.config_dir == "":
        raise ConfigError("--config-dir needs a value; see --help")
    if args.config_dir:
        args.config_dir = os.path.abspath(os.path.expanduser(args.config_dir))
    return args
