"""Errors of Hydra and OmegaConf in one line with the fix. No TensorFlow."""

from __future__ import annotations

import errno
import importlib.resources
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from trainer.cli.choices import Choices
from trainer.cli.command_table import COMMANDS
from trainer.config.modes import MODES
from trainer.config.other_names import choice_hint
from trainer.config.removed import removal
from trainer.config.schema import USED
from trainer.errors import ConfigError
from trainer.files import storage_problem
from trainer.text import did_you_mean, printable

USER_ERRORS = (ConfigError, HydraException, OmegaConfBaseException, yaml.YAMLError)
"""What composing raises for a mistake of the user's."""


def explain(error: BaseException) -> tuple[str, ...]:
    """Return the problems that an error reports, one line each."""
    lines = error.problems if isinstance(error, ConfigError) else (_one_line(error),)
    return tuple(map(printable, lines))


@contextmanager
def reading_configuration() -> Iterator[None]:
    """Raise what composing raises for a mistake of the user's as a ConfigError.

    Hydra raises plain errors too, such as for a file that is no text; elsewhere they are faults.
    An error of storage stays as it is: the same command may succeed later.
    """
    try:
        yield
    except (*USER_ERRORS, ValueError, OSError, RecursionError) as error:
        if storage_problem(error):
            raise
        raise ConfigError(*explain(error)) from error


def _one_line(error: BaseException) -> str:
    if isinstance(error, yaml.YAMLError):
        return _bad_yaml(error)
    if isinstance(error, UnicodeDecodeError):
        return f"a YAML file is not UTF-8 text: {error.reason}; save it as UTF-8"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{str(error.filename)[:60]}...: this name is too long for the file system"
    if isinstance(error, RecursionError):
        return (
            "a choice builds on itself: the defaults in its YAML file lead back to it; "
            "remove one of them"
        )
    if isinstance(error, OverrideParseException):
        return _no_override(str(error.override))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_choice(error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        key = f"{cause.full_key or cause.key or 'configuration'}: "
        text = _first_line(str(cause))
        return key + text.removeprefix("KeyError raised while resolving interpolation: ")
    return _hydra_text(str(error))


def _no_override(word: str) -> str:
    """Explain a word that Hydra cannot parse as an override."""
    if word in COMMANDS:
        return f"'{word}' is a command; it comes first, and takes no overrides and no -m"
    if word in MODES:
        fix = "it takes only overrides, as in model=cnn train.epochs=5"
        other = f"write mode={word} resume=<run>"
        return f"'{word}' is no command; {fix if word == 'train' else other}"
    key, _, value = word.partition("=")
    rule = "; write key=value or group=choice, and quote special characters"
    is_special = re.search(r"[^\w/.:+-]", value) and not re.search(r"[=,'\"$`{}\[\]]", value)
    if is_special and value.isascii() and re.fullmatch(r"\+*[A-Za-z_.]+", key):
        rule = f"; write \"{key}='{value}'\"; quote special characters"
    return f"'{word}' is neither a command nor an override{did_you_mean(word, COMMANDS) or rule}"


def _bad_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or _first_line(str(error))
    location = f"{_relative(mark.name)}:{mark.line + 1}: " if mark else ""
    return f"{location}{text}; correct the YAML"


def _relative(path: str) -> str:
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _no_choice(error: MissingConfigException) -> str:
    file = str(error.missing_cfg_file)
    group, _, choice = file.rpartition("/")
    if gone := removal(f"{group}={choice}"):
        return gone
    words = USED if group == "checkpoint" else ()
    # Hydra does not list them if several were chosen.
    folder = re.search(r"path=file://([^,\n]+)", str(error))
    choices = error.options or Choices(folder and folder[1], {}).of(group)
    options = sorted([*choices, *words])
    if not options:
        return f"{error.missing_cfg_file}: no such configuration file"
    path = Path("conf", group, f"{choice}.yaml")
    own = f"; {path} is one: add --config-dir=conf" if path.is_file() else ""
    hint = own or choice_hint(group, choice, options) or did_you_mean(choice, options)
    # The hint first: a list can be long.
    rest = f"{hint} Choose" if hint.endswith("?") else f"{hint}; choose"
    return f"{group}={choice}: no such choice{rest} one of {', '.join(options)}"


def _hydra_text(text: str) -> str:
    for pattern, explanation in _HYDRA_ERRORS:
        if match := re.search(pattern, text):
            words = match.groups()
            if isinstance(explanation, str):
                return explanation.format(*words)
            return explanation(*words)
    return _first_line(text)


def _no_place(group: str, place: str, places: str | None) -> str:
    """Explain that a group is not chosen at a place; `places` lists where it is."""
    name = f"{group}@{place}"
    names = [word for word in (places or "").split(", ") if "@" in word]
    node = f"{group}/{place.rpartition('.')[2]}"
    if not names and importlib.resources.files("trainer.conf").joinpath(node).is_dir():
        return f"{name}: {group} is not chosen there; write {node}@{place}=<choice>"
    if not names:
        return f"{group} is chosen at its own place; write {group}=<choice>, without @"
    hint = did_you_mean(name, names) or f"; known: {', '.join(names)}"
    return f"{name}: {group} is not chosen there{hint}"


_TWICE = "{0} is chosen twice; write {0}=<choice> once, without +"
_HYDRA_ERRORS: tuple[tuple[str, str | Callable[..., str]], ...] = (
    (r"Multiple values for ([\w/]+)\.", _TWICE),
    (r"^([\w/]+) appears more than once", _TWICE),
    (
        r"Could not override '([\w/]+)@([\w.]+)'\.(?:\n.*override (?:one of )?(.*)\?)?",
        _no_place,
    ),
    (
        r"^Invalid loaded object type: (\w+)",
        "a choice's YAML file must hold keys, not one {0}; write key: value",
    ),
)
"""Messages of Hydra, and ours; the first pattern that matches counts."""


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        lines[0]
        if lines
        else "no further explanation; set HYDRA_FULL_ERROR=1 to see where it comes from"
    )
