"""The pages of `--help`: an overview, and for `--help <group, key or group=choice>` the keys.

No TensorFlow.
"""

from __future__ import annotations

import importlib.resources
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from string import Template
from typing import Any

from trainer.cli.choices import Choices
from trainer.cli.command_table import COMMANDS
from trainer.config.rules.values import unknown_name
from trainer.config.schema import ENGINE_KEYS, GROUPS, Experiment, Fault
from trainer.errors import ConfigError

_WIDTH = 120
_COMMON_KEYS = (
    "train.epochs", "train.steps", "batch.global_size", "precision", "seed", "resume", "name",
    "runs_dir",
)  # fmt: skip
_EVERYTHING = "keys"
_ABOUT = {item.name: item.metadata["help"] for item in fields(Experiment)} | {
    "experiment": "a recipe: choices and values together"
}

Row = tuple[str, Any, str]
"""A key, its value and its explanation."""


def render(
    program: str, topics: Sequence[str], composed: Mapping[str, Any], choices: Choices
) -> str:
    """Return the help page.

    Args:
        program: the command to show in examples.
        topics: the groups and keys to explain; none: the overview.
        composed: the composed configuration, as plain containers.
        choices: the choices of each group, and the chosen one.

    Raises:
        ConfigError: there is no such group or key.
    """
    rows = [*_schema_rows(Experiment, composed, ""), *_free_rows(composed, choices)]
    parts = [_topic(topic, rows, composed, choices) for topic in topics]
    if not topics:
        text = importlib.resources.files(__package__).joinpath("overview.txt").read_text("utf-8")
        values = {"groups": _groups(choices), "keys": _common_keys(rows), "commands": _commands()}
        parts = [Template(text).substitute(values)]
    return "\n".join(parts).rstrip().replace("python train.py", program)


def _commands(names: Iterable[str] = COMMANDS) -> str:
    rows = {f"  python train.py {name} {COMMANDS[name][0]}": COMMANDS[name][1] for name in names}
    width = max(len(command) for command in rows) + 2
    lines = ["Commands", *(f"{command:{width}}{text}" for command, text in rows.items())]
    return "\n".join(lines) + "\n"


def _groups(choices: Choices) -> str:
    lines = ["Groups: group=choice"]
    for group in choices.groups():
        # The names of faults say what they are.
        list_choices = _names if group == "fault" else _choices
        lines += [
            f"  {_chosen(group, choices):24}{_ABOUT.get(group, '')}".rstrip(),
            *list_choices(group, choices, "    "),
            *_places(group, choices),
        ]
    return "\n".join(lines) + "\n"


def _places(group: str, choices: Choices) -> list[str]:
    """Return the groups that are chosen within the choice of a group."""
    names = [
        f"{inner}@{place}"
        for place, inner in choices.places().items()
        if place.startswith(f"{group}.")
    ]
    return [
        f"    {_chosen(name, choices):40}  {choices.explanation(name)}".rstrip() for name in names
    ]


def _chosen(group: str, choices: Choices) -> str:
    chosen = choices.chosen.get(group)
    return f"{group}={_shown(chosen)}" if chosen else group


def _choices(group: str, choices: Choices, indent: str) -> list[str]:
    return [f"{indent}{choice:22}  {text}".rstrip() for choice, text in choices.of(group).items()]


def _names(group: str, choices: Choices, indent: str) -> list[str]:
    names = ", ".join(choices.of(group))
    return textwrap.wrap(names, 110, initial_indent=indent, subsequent_indent=indent)


def _common_keys(rows: Sequence[Row]) -> str:
    """Return the common keys, and the names of the others."""
    by_key = {row[0]: row for row in rows}
    table = _table([by_key[key] for key in _COMMON_KEYS])
    sections = dict.fromkeys(key.partition(".")[0] for key in by_key)
    names = " ".join(name for name in sections if name not in (*GROUPS, *_COMMON_KEYS))
    others = textwrap.wrap(
        f"and with --help <name>: {names}", _WIDTH, initial_indent="  ", subsequent_indent="    "
    )
    return "\n".join(["Keys: key=value", *table, *others]) + "\n"


def _topic(topic: str, rows: Sequence[Row], composed: Mapping[str, Any], choices: Choices) -> str:
    """Explain a group, a section of keys, a key, all keys, or a command."""
    if topic in COMMANDS:
        return f"{_commands([topic])}  python train.py {topic} --help\n"
    if topic == _EVERYTHING:
        return "\n".join(["Keys: key=value", *_table(rows)]) + "\n"
    place = topic.rpartition("@")[2]
    of_topic = [row for row in rows if row[0] == place or row[0].startswith(f"{place}.")]
    if inner := choices.places().get(place):
        topic = f"{inner}@{place}"
    elif topic not in choices.groups():
        if line := unknown_name(topic, {**composed, _EVERYTHING: None}):
            raise ConfigError(line)
        head = [f"{topic}: {_ABOUT[topic]}"] if topic in _ABOUT else []
        return "\n".join([*head, *_table(of_topic)]) + "\n"
    if topic == "experiment" and choices.chosen.get(topic):
        of_topic = _recipe_rows(composed, choices)
    lines = [
        f"{_chosen(topic, choices)}: {choices.explanation(topic) or _ABOUT.get(topic, '')}",
        *_table(of_topic),
        *(["", f"Groups in {topic}", *places] if (places := _places(topic, choices)) else []),
    ]
    return "\n".join([*lines, "", f"Choices of {topic}", *_choices(topic, choices, "  ")]) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table, with explanations wrapped."""
    shown = [(f"{key}={_shown(value)}", text) for key, value, text in rows]
    width = min(max((len(left) for left, _ in shown), default=0), 44)
    indent = " " * (width + 4)
    lines = []
    for left, text in shown:
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent=f"  {left:{width}}  ", subsequent_indent=indent
        ) or [f"  {left}"]
    return lines


def _schema_rows(schema: Any, values: Any, path: str) -> list[Row]:
    """Return the keys of a dataclass, with their values or else their defaults."""
    rows: list[Row] = []
    for item in fields(schema):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        value = values.get(item.name, default) if isinstance(values, Mapping) else default
        if is_dataclass(default):
            rows += _schema_rows(type(default), value, f"{path}{item.name}.")
        elif path or item.name not in (*GROUPS, "choices"):
            rows.append((f"{path}{item.name}", value, item.metadata["help"]))
    return rows


def _free_rows(composed: Mapping[str, Any], choices: Choices) -> list[Row]:
    """Return the keys that the schema leaves free: the options of targets, and each fault."""
    faults = composed.get("fault") or {"<name>": {}}
    rows = [
        row for name, node in faults.items() for row in _schema_rows(Fault, node, f"fault.{name}.")
    ]
    for group in GROUPS:
        if group not in ("fault", "experiment") and (
            group not in _ABOUT or not is_dataclass(getattr(Experiment(), group))
        ):
            comments = choices.key_comments(group)
            rows += [
                (f"{group}.{key}", value, comments.get(key) or _of_engine(group, key))
                for key, value in _leaves(composed.get(group), "")
            ]
    return rows


def _of_engine(group: str, key: str) -> str:
    """Return the explanation of a key that the engine reads, in its group or a node of the task."""
    name = key.rpartition(".")[2]
    groups = (group,) if name == key else ENGINE_KEYS
    items = [ENGINE_KEYS[group][name] for group in groups if name in ENGINE_KEYS.get(group, ())]
    return str(items[0].metadata["help"]) if items else ""


def _recipe_rows(composed: Mapping[str, Any], choices: Choices) -> list[Row]:
    """Return what a recipe chooses and sets."""
    chosen = [
        (group, choice, _ABOUT.get(group, ""))
        for group, choice in choices.overridden("experiment").items()
    ]
    leaves = dict(_leaves(composed, ""))
    return [
        *chosen,
        *((key, leaves.get(key), text) for key, text in choices.key_comments("experiment").items()),
    ]


def _leaves(node: Any, path: str) -> list[tuple[str, Any]]:
    """Return the dotted keys of a mapping with their values."""
    if not isinstance(node, Mapping):
        return []
    leaves: list[tuple[str, Any]] = []
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            leaves += _leaves(value, f"{path}{name}.")
        elif not str(name).startswith("_"):
            leaves.append((f"{path}{name}", value))
    return leaves


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_shown(item) for item in value)}]"
    return str(value)
