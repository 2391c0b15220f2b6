"""Turns Hydra's and OmegaConf's errors, several lines each, into one line that says what to change. No TensorFlow."""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, InterpolationResolutionError, OmegaConfBaseException

from trainer import rules
from trainer.commands import COMMANDS
from trainer.config import plain, unknown_name
from trainer.errors import ConfigError
from trainer.rules import did_you_mean, unknown_key
from trainer.schema import GROUPS, ONE_CHOICE, USED, Experiment

EXPECTED = (ConfigError, HydraException, OmegaConfBaseException, yaml.YAMLError)
"""What composing raises where the user is wrong."""

_KINDS = {"Integer": "an int", "Float": "a float", "Boolean": "a bool", "bool": "a bool", "type hint 'Union[int, str]'": "an int or a word"}
_IN_FILE = re.compile(r"In '(?P<file>[^']+)': (?P<kind>\w+) raised while composing config:\n(?P<text>.*)", re.DOTALL)
_BAD_VALUE = re.compile(r"Value '(?P<value>.*)' of type '[\w.]+' (?:could not be converted to|is incompatible with) (?P<kind>.*)")
_SOURCE = re.compile(r"path=(?:pkg|file)://([^,\n]+)")


def explain(error: BaseException) -> tuple[str, ...]:
    """Gives the problems that an error stands for, a line each."""
    if isinstance(error, ConfigError):
        return error.problems
    return (_one_line(error),)


def _one_line(error: BaseException) -> str:
    if isinstance(error, yaml.YAMLError):
        return _bad_yaml(error)
    if isinstance(error, UnicodeDecodeError):
        return f"a YAML file is not UTF-8 text: {error.reason}; save it as UTF-8"
    if isinstance(error, RecursionError):
        return "a choice builds on itself: the defaults in its YAML file lead back to it; remove one of them"
    if isinstance(error, OverrideParseException):
        if (word := str(error.override)) in COMMANDS:
            return f"'{word}' is a command; it comes first, and takes no overrides and no -m"
        rule = "write key=value or group=choice, and quote special characters"
        return f"'{error.override}' is not an override; {rule}{did_you_mean(word, COMMANDS)}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_choice(error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        return _bad_key(cause)
    text = str(error)
    if found := _IN_FILE.match(text):
        return _in_file(found["file"], found["kind"], found["text"])
    return _hydra_text(text)


def _bad_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or _first_line(str(error))
    place = f"{_relative(mark.name)}:{mark.line + 1}: " if mark else ""
    return f"{place}{text}; mend the YAML"


def _relative(path: str) -> str:
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _no_choice(error: MissingConfigException) -> str:
    file = str(error.missing_cfg_file)
    group, _, choice = file.rpartition("/") if file.startswith("hydra/") else file.partition("/")
    options = sorted([*(error.options or _choices(str(error), group)), *(USED if group == "checkpoint" else [])])
    if not options:
        return f"{error.missing_cfg_file}: no such configuration file"
    return f"{group}={choice}: no such choice; choose one of {', '.join(options)}{did_you_mean(choice, options)}"


def _choices(text: str, group: str) -> set[str]:
    """Lists a group's choices in the search path that an error tells: for a list of choices Hydra does not list them."""
    roots = [Path(place) if place.startswith("/") else importlib.resources.files(place) for place in _SOURCE.findall(text)]
    folders = [folder for root in roots if (folder := root.joinpath(group)).is_dir()]
    return {file.name.removesuffix(".yaml") for folder in folders for file in folder.iterdir() if file.name.endswith(".yaml")}


def _bad_key(error: OmegaConfBaseException) -> str:
    key = str(error.full_key or error.key or "")
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        parent = error.parent_node
        root: Any = parent._get_root() if parent is not None else None
        return unknown_key(key, _names(parent), _without_hydra(root))
    if isinstance(error, InterpolationResolutionError):
        return f"{key}: {_first_line(str(error)).removeprefix('KeyError raised while resolving interpolation: ')}"
    return _bad_value(key, _first_line(str(error)), error.value)


def _bad_value(key: str, text: str, value: Any = None) -> str:
    """Explains a value that OmegaConf refuses. It is taken from the text where the error does not hold it."""
    found = _BAD_VALUE.match(text)
    shown = rules.shown(found["value"] if value is None and found else value)
    if found:
        return f"{key} ({shown}) must be {_KINDS.get(found['kind'].strip(), found['kind'])}"
    if "is not a valid bool" in text:
        return f"{key} ({shown}) must be true or false"
    if "is not Optional" in text or "Incompatible value 'None'" in text:
        return f"{key} (null) must have a value"
    if "to string" in text:
        return f"{key} ({shown}) must be a str"
    if "is not a ListConfig" in text:
        return f"{key} ({shown}) must be a list; write {key}=[...]"
    if "is not a subclass of" in text:
        return f"{key} ({shown}) must be a mapping; set a key in it, {key}.<key>=<value>"
    if "does not support deletion" in text:
        return f"{key} cannot be removed; write {key}=null"
    return f"{key}: {text}"


def _in_file(file: str, kind: str, text: str) -> str:
    """Explains an error inside a YAML file, which Hydra hands on as text alone."""
    key = found[1] if (found := re.search(r"full_key: (\S+)", text)) else ""
    if kind in ("ConfigKeyError", "ConfigAttributeError"):
        if key == file.partition("/")[0]:
            return f"{file}.yaml must have the first line '# @package _global_', to set keys of other groups"
        return f"{file}.yaml: {_unknown_in_schema(key)}"
    return f"{file}.yaml: {_bad_value(key, _first_line(text))}"


def _unknown_in_schema(key: str) -> str:
    root = plain(Experiment())
    parent: Any = root
    for name in key.split(".")[:-1]:
        parent = parent[name]
    return unknown_key(key, parent, root)


def _hydra_text(text: str) -> str:
    if found := re.search(r"In '(.*)': Could not override '([\w/]+)'. No match", text):
        return f"{found[1]}.yaml overrides '{found[2]}', which is no group{did_you_mean(found[2], GROUPS)}"
    if found := re.search(r"Multiple values for ([\w/]+)\.", text) or re.match(r"([\w/]+) appears more than once", text):
        return f"{found[1]} is chosen twice; write {found[1]}=<choice> once, without +"
    if found := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        as_list = f", or write {found[1]}=[{found[2]}] for a list" if found[1] not in ONE_CHOICE else ""
        return f"'{found[1]}={found[2]}' has several values; add -m to try each{as_list}"
    if found := re.search(r"Sweep parameters '(.*)' requires --multirun", text):
        return f"'{found[1]}' has several values; add -m to try each"
    if found := re.search(r"Could not append to config. An item is already at '(.*)'", text):
        return f"'{found[1]}' exists; write {found[1]}=<value>, without +"
    if found := re.match(r"force-add of config groups is not supported: '\+\+(.*)'", text):
        return f"'++{found[1]}' adds a group that is there; write {found[1]}"
    if found := re.search(r"Could not override '([\w/]+)@.*'", text):
        return f"{found[1]} is chosen at a place of its own; write {found[1]}=<choice>, without @"
    if found := re.match(r"Invalid loaded object type: (\w+)", text):
        return f"a choice's YAML file must hold keys, not one {found[1]}; write key: value"
    if found := re.search(r"Could not delete from config. '(.*)' does not exist", text):
        return unknown_name(found[1], plain(Experiment())) or f"{found[1]} is not set, and cannot be removed; leave '~{found[1]}' out"
    return _first_line(text)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no further explanation; set HYDRA_FULL_ERROR=1 to see where it comes from"


def _names(node: Any) -> list[str]:
    return [str(name) for name in node] if isinstance(node, DictConfig) and not node._is_none() else []


def _without_hydra(root: Any) -> Mapping[str, Any]:
    if not isinstance(root, DictConfig):
        return {}
    container: Any = OmegaConf.to_container(OmegaConf.masked_copy(root, [name for name in _names(root) if name != "hydra"]))
    return container
