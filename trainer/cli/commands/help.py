"""The command `help [topic ...]`, and the flag `--help`: an overview, or pages about topics.

A topic is a group, a choice (`model=cnn`), a key, a section of keys, a command, or `all`.
No TensorFlow.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.cli.arguments import parse
from trainer.cli.choices import Choices
from trainer.cli.command_table import COMMANDS
from trainer.cli.compose import compose_config
from trainer.cli.overrides import override_key, rewrite
from trainer.config.options.constraints import format_plain, unknown_name
from trainer.config.schema import ENGINE_KEYS, GROUPS, ONE_CHOICE, Experiment, Fault
from trainer.errors import DONE, ConfigError
from trainer.text import printable_lines

_MOST_COLUMNS = 120
_ALL = "all"
_ABOUT = {item.name: item.metadata["help"] for item in fields(Experiment)} | {
    "experiment": "a recipe: choices and values together"
}
_EXAMPLES = {
    "": "a small CNN on digits",
    "optimizer.learning_rate=0.01": "another value of a key",
    "model=mobilenet strategy=mirrored": "all GPUs of this machine",
    "-m model=cnn,softmax seed=1,2": "a sweep: every combination",
    "resume=runs/<run> train.epochs=40": "continue a run, for longer",
    "mode=export resume=runs/<run>": "also evaluate, predict",
}
"""The program's name and purpose, for the first page."""
_MORE_EXAMPLES = {
    "experiment=mnist_tutorial dataset.path=<file>": "a recipe under version control",
    "-m search=random 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'": "a search: "
    "search.max_points points from a range",
    "mode=evaluate resume=runs/<run> checkpoint=best": "evaluate the best checkpoint",
    "fault=kill_chief_at_50": "inject a fault, in a separate run directory",
    "--config-dir=conf model=mine": "your own conf/model/mine.yaml, which names your function",
}
_FLAGS = {
    "-m": "several values for a key or group: run every combination",
    "--config-dir=DIR": "your own choices, such as DIR/model/mine.yaml; the same name replaces "
    "ours",
    "--cfg job": "print the composed configuration, and stop",
    "--shell-completion install=bash": "print the script for completion by the tab key; also zsh "
    "and fish",
    "--version": "print the version, and stop",
}

Row = tuple[str, Any, str]  # a key, its value and its explanation


def run(arguments: Sequence[str]) -> int:
    """Print the page that `help` with these arguments requests."""
    return show(parse(["--help", *arguments]))


def show(args: argparse.Namespace) -> int:
    """Print the overview, or a page about each topic of a command line."""
    chosen, config_dir = rewrite([item for item in args.overrides if "=" in item], args.config_dir)
    composition = compose_config(chosen, config_dir)
    topics = dict.fromkeys(
        override_key(item) for item in args.overrides if not item.startswith("hydra")
    )
    pages = _Pages(
        "python train.py" if sys.argv[0].endswith(".py") else Path(sys.argv[0]).name,
        min(shutil.get_terminal_size().columns, _MOST_COLUMNS),
        composition.container(),
        Choices(config_dir, composition.choices),
    )
    texts = [pages.topic(topic) for topic in topics] or [pages.overview()]
    print(printable_lines("\n\n".join(texts)))
    return DONE


@dataclass(frozen=True)
class _Pages:
    """Writes the pages."""

    program: str
    width: int
    composed: Mapping[str, Any]
    choices: Choices

    def overview(self) -> str:
        """Return what everybody needs, on one screen."""
        names = {name: re.split("[:;]", text)[0] for name, (_, text) in COMMANDS.items()}
        groups = " ".join(self._default(group) for group in self.choices.groups())
        lines = [
            "Steadfast: declare an experiment, train it anywhere, and never lose a step.",
            "",
            f"Usage: {self.program} [group=choice ...] [key=value ...]",
            "The same command continues a run that was killed or stopped.",
            "",
            *self._examples(_EXAMPLES),
            "",
            f"Commands: {self.program} <command> --help",
            *self._table(names.items()),
            "",
            f"Groups with their default: {self.program} help <group>",
            *textwrap.wrap(
                groups,
                self.width,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            ),
            "",
            f"More: {self.program} help all, help model=cnn, help train, help train.epochs",
        ]
        return "\n".join(lines)

    def topic(self, topic: str) -> str:
        """Explain a group, a section, a key, a command, or all; raise a ConfigError at others."""
        if topic == _ALL:
            return self._all()
        if topic in COMMANDS:
            lines = [*self._commands([topic]), f"  {self.program} {topic} --help"]
            return "\n".join(lines)
        choices = self.choices
        place = topic.rpartition("@")[2]
        rows = self._rows()
        of_topic = [row for row in rows if row[0] == place or row[0].startswith(f"{place}.")]
        if inner := choices.places().get(place):
            topic = f"{inner}@{place}"
        elif topic not in choices.groups():
            if line := unknown_name(topic, {**self.composed, **COMMANDS, _ALL: None}):
                raise ConfigError(line.replace("?", "? See --help all for the list"))
            head = [f"{topic}: {_ABOUT[topic]}"] if topic in _ABOUT else []
            return "\n".join([*head, *self._keys(of_topic)])
        explanation = choices.explanation(topic) or _ABOUT.get(topic, "")
        lines = [
            *textwrap.wrap(f"{_chosen(topic, choices)}: {explanation}", self.width),
            *self._keys(of_topic),
            *(choices.recipe().splitlines() if topic == "experiment" else []),
            *(["", f"Groups in {topic}", *places] if (places := self._places(topic)) else []),
        ]
        return "\n".join(
            [*lines, "", f"Choices of {topic}", *self._table(choices.of(topic).items())]
        )

    def _default(self, group: str) -> str:
        """Return a group with what is chosen in it, in a list where there may be several."""
        several = list(self.composed.get(group) or ()) if group not in ONE_CHOICE else []
        if len(several) > 1:
            return f"{group}={format_plain(several)}"
        return _chosen(group, self.choices)

    def _all(self) -> str:
        """Return every example, command, flag, group with its choices, and key."""
        lines = [
            *self._examples({**_EXAMPLES, **_MORE_EXAMPLES}),
            "",
            *self._commands(COMMANDS),
            "",
            "Flags",
            *self._table(_FLAGS.items()),
            "",
            "Groups: group=choice",
        ]
        for group in self.choices.groups():
            lines += self._table([(_chosen(group, self.choices), _ABOUT.get(group, ""))])
            lines += self._table(self.choices.of(group).items(), "    ")
            lines += self._places(group)
        return "\n".join([*lines, "", "Keys: key=value", *self._keys(self._rows())])

    def _rows(self) -> list[Row]:
        return [
            *_schema_rows(Experiment, self.composed, ""),
            *_free_rows(self.composed, self.choices),
        ]

    def _examples(self, examples: Mapping[str, str]) -> list[str]:
        return self._table(
            [(f"{self.program} {words}".rstrip(), text) for words, text in examples.items()]
        )

    def _commands(self, names: Iterable[str]) -> list[str]:
        rows = [(f"{self.program} {name} {COMMANDS[name][0]}", COMMANDS[name][1]) for name in names]
        return ["Commands", *self._table(rows)]

    def _places(self, group: str) -> list[str]:
        names = [
            f"{inner}@{place}"
            for place, inner in self.choices.places().items()
            if place.startswith(f"{group}.")
        ]
        rows = [(_chosen(name, self.choices), self.choices.explanation(name)) for name in names]
        return self._table(rows, "    ")

    def _keys(self, rows: Sequence[Row]) -> list[str]:
        return self._table([(f"{key}={format_plain(value)}", text) for key, value, text in rows])

    def _table(self, rows: Iterable[tuple[str, str]], indent: str = "  ") -> list[str]:
        """Return the lines of two columns, the second one wrapped; a long first one has a line."""
        rows = list(rows)
        most = self.width // 2 + 10
        left = min(max((len(first) for first, _ in rows), default=0), most)
        second = " " * (len(indent) + left + 2)
        lines = []
        for first, text in rows:
            begin = f"{indent}{first:{left}}  "
            if len(first) > left and text:
                lines.append(f"{indent}{first}")
                begin = second
            lines += textwrap.wrap(
                text,
                self.width,
                initial_indent=begin,
                subsequent_indent=second,
                break_on_hyphens=False,
            ) or [f"{indent}{first}"]
        return lines


def _chosen(group: str, choices: Choices) -> str:
    chosen = choices.chosen.get(group)
    return f"{group}={format_plain(chosen)}" if chosen else group


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
    comments = choices.key_comments()
    for group in GROUPS:
        if group not in ("fault", "experiment") and (
            group not in _ABOUT or not is_dataclass(getattr(Experiment(), group))
        ):
            rows += [
                (key, value, comments.get(key) or _of_engine(group, key))
                for key, value in _leaves(composed.get(group), f"{group}.")
            ]
    return rows


def _of_engine(group: str, key: str) -> str:
    """Return the explanation of a key that the engine reads, in its group or a node of the task."""
    section, _, name = key.rpartition(".")
    groups = (group,) if section == group else ENGINE_KEYS
    items = [ENGINE_KEYS[group][name] for group in groups if name in ENGINE_KEYS.get(group, ())]
    return str(items[0].metadata["help"]) if items else ""


def _leaves(node: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(node, Mapping):
        return []
    leaves: list[tuple[str, Any]] = []
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            leaves += _leaves(value, f"{path}{name}.")
        elif not str(name).startswith("_"):
            leaves.append((f"{path}{name}", value))
    return leaves
