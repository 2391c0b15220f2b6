"""What `--help` prints: a first page with choices and examples, and for `--help <group, key or group=choice>` the keys. No TensorFlow."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from trainer import config
from trainer.choices import Choices
from trainer.commands import COMMANDS
from trainer.comments import first_comment as first_comment
from trainer.errors import ConfigError
from trainer.schema import GROUPS, Experiment, Fault

_WIDTH = 120
_SLOGAN = "Steadfast: declare an experiment, train it on anything from a laptop to a pod, and never lose a step."
_EXAMPLES = """\
Usage: python train.py [group=choice ...] [key=value ...]; killed or stopped, the same command goes on where it was

  python train.py                                             digits, a small CNN, one device: under a minute
  python train.py model=mobilenet strategy=mirrored           another model, on all GPUs of this machine
  python train.py optimizer=sgd optimizer.learning_rate=0.05  another optimizer, and a value for one of its keys
  python train.py -m model=cnn,softmax seed=1,2               a sweep: every combination
  python train.py -m search=random 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'
                                                              a search: search.trials points from a range
  python train.py experiment=mnist_tutorial dataset.path=...  a recipe under version control
  python train.py resume=runs/<run> train.epochs=40           a run goes on, for longer
  python train.py mode=evaluate resume=runs/<run> checkpoint=best
                                                              evaluate (export, predict with) what was trained
  python train.py fault=kill_chief_at_50                      rehearse a failure, in a run directory of its own
  python train.py --config-dir=conf model=mine                your own conf/model/mine.yaml, which names your function
"""
_MORE = """\
Flags
  -m                        several values for a key or group: run every combination
  --config-dir=DIR          your own choices, such as DIR/model/mine.yaml: more of them, or instead of those above
  --cfg job                 print the composed configuration, and stop
  --help model=mobilenet    a choice, explained with its keys; likewise --help optimizer, --help train, --help keys
"""
_DAILY = ("train.epochs", "train.steps", "batch.global_size", "precision", "seed", "resume", "name", "runs_dir")
_EVERYTHING = "keys"
_ABOUT = {item.name: item.metadata["help"] for item in fields(Experiment)} | {"experiment": "a recipe: choices and values together"}

Row = tuple[str, Any, str]
"""A key, its value, its explanation."""


def render(program: str, topics: Sequence[str], composed: Mapping[str, Any], choices: Choices) -> str:
    """Writes the page.

    Args:
        program: how the command is called.
        topics: the groups and keys that are asked about; none: the first page.
        composed: the composed configuration, as plain containers.
        choices: what there is to choose from, and what was chosen.

    Raises:
        ConfigError: there is no such group or key.
    """
    rows = [*_schema_rows(Experiment, composed, ""), *_free_rows(composed, choices)]
    parts = [_topic(topic, rows, composed, choices) for topic in topics] or [
        f"{_SLOGAN}\n",
        _EXAMPLES,
        _groups(choices),
        _daily(rows),
        _MORE,
        _commands(),
    ]
    return "\n".join(parts).rstrip().replace("python train.py", program)


def _commands(names: Iterable[str] = COMMANDS) -> str:
    rows = {f"  python train.py {name} {COMMANDS[name][0]}": COMMANDS[name][1] for name in names}
    width = max(len(left) for left in rows) + 2
    return "\n".join(["Commands", *(f"{left:{width}}{shows}" for left, shows in rows.items())]) + "\n"


def _groups(choices: Choices) -> str:
    lines = ["Groups: group=choice"]
    for group in choices.groups():
        lines += [f"  {_chosen(group, choices):24}{_ABOUT.get(group, '')}".rstrip(), *_choices(group, choices, "    ")]
    return "\n".join(lines) + "\n"


def _chosen(group: str, choices: Choices) -> str:
    chosen = choices.chosen.get(group)
    return f"{group}={_shown(chosen)}" if chosen else group


def _choices(group: str, choices: Choices, indent: str) -> list[str]:
    return [f"{indent}{choice:22}  {text}".rstrip() for choice, text in choices.of(group).items()]


def _daily(rows: Sequence[Row]) -> str:
    others = dict.fromkeys(key.partition(".")[0] for key, *_ in rows)
    daily = {key: (value, text) for key, value, text in rows}
    lines = ["Keys: key=value", *_table([(key, *daily[key]) for key in _DAILY])]
    names = " ".join(name for name in others if name not in (*GROUPS, *_DAILY))
    return (
        "\n".join([*lines, *textwrap.wrap(f"and with --help <name>: {names}", _WIDTH, initial_indent="  ", subsequent_indent="    ")])
        + "\n"
    )


def _topic(topic: str, rows: Sequence[Row], composed: Mapping[str, Any], choices: Choices) -> str:
    """Explains a group, a section of keys, a key, all keys, or a command."""
    if topic in COMMANDS:
        return f"{_commands([topic])}  python train.py {topic} --help\n"
    if topic == _EVERYTHING:
        return "\n".join(["Keys: key=value", *_table(rows)]) + "\n"
    found = [row for row in rows if row[0] == topic or row[0].startswith(f"{topic}.")]
    if topic not in choices.groups():
        if line := config.unknown_name(topic, {**composed, _EVERYTHING: None}):
            raise ConfigError(line)
        return "\n".join([*([f"{topic}: {_ABOUT[topic]}"] if topic in _ABOUT else []), *_table(found)]) + "\n"
    if topic == "experiment" and choices.chosen.get(topic):
        found = _recipe_rows(composed, choices)
    lines = [f"{_chosen(topic, choices)}: {choices.explanation(topic) or _ABOUT.get(topic, '')}", *_table(found)]
    return "\n".join([*lines, "", f"Choices of {topic}", *_choices(topic, choices, "  ")]) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    shown = [(f"{key}={_shown(value)}", text) for key, value, text in rows]
    width = min(max((len(left) for left, _ in shown), default=0), 44)
    indent = " " * (width + 4)
    lines = []
    for left, text in shown:
        lines += textwrap.wrap(text, _WIDTH, initial_indent=f"  {left:{width}}  ", subsequent_indent=indent) or [f"  {left}"]
    return lines


def _schema_rows(schema: Any, values: Any, path: str) -> list[Row]:
    """Lists the keys of a dataclass, with what they are set to or else their defaults."""
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
    """Lists the keys of the groups that the schema leaves free: those of their targets, and of each fault."""
    faults = composed.get("fault") or {"<name>": {}}
    rows = [row for name, node in faults.items() for row in _schema_rows(Fault, node, f"fault.{name}.")]
    for group in GROUPS:
        if group not in ("fault", "experiment") and (group not in _ABOUT or not is_dataclass(getattr(Experiment(), group))):
            comments = choices.key_comments(group)
            rows += [(f"{group}.{key}", value, comments.get(key, "")) for key, value in _leaves(composed.get(group), "")]
    return rows


def _recipe_rows(composed: Mapping[str, Any], choices: Choices) -> list[Row]:
    chosen = [(group, choice, _ABOUT.get(group, "")) for group, choice in choices.overridden("experiment").items()]
    leaves = dict(_leaves(composed, ""))
    return [*chosen, *((key, leaves.get(key), text) for key, text in choices.key_comments("experiment").items())]


def _leaves(node: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(node, Mapping):
        return []
    found: list[tuple[str, Any]] = []
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            found += _leaves(value, f"{path}{name}.")
        elif not str(name).startswith("_"):
            found.append((f"{path}{name}", value))
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_shown(item) for item in value)}]"
    return str(value)
