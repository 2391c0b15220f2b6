"""What `--help` prints: the groups with their choices, the keys with their defaults, and examples. No TensorFlow."""

from __future__ import annotations

import importlib.resources
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from trainer.comments import first_comment
from trainer.schema import GROUPS, Experiment, Fault

_WIDTH = 120
_USAGE = """\
Steadfast: declare an experiment, train it on anything from a laptop to a pod, and never lose a step.

usage: python train.py [group=choice ...] [key=value ...] [-m] [--config-dir DIR] [--cfg job]
       python train.py checkpoints runs/<run>                 list what a run has saved, and verify it
"""
_EXAMPLES = """\
Examples
  python train.py                                             digits, a small CNN, one device: under a minute
  python train.py model=mobilenet strategy=mirrored           another model, on all GPUs of this machine
  python train.py -m model=cnn,softmax optimizer.learning_rate=0.01,0.001
                                                              a sweep: every combination in turn
  python train.py resume=runs/<run> train.epochs=40           go on with a run; the same command does it too
  python train.py experiment=mnist_tutorial dataset.path=...  a recipe under version control
  python train.py mode=evaluate resume=runs/<run>             evaluate (or export) what was trained
  python train.py fault=kill_chief_at_50                      a rehearsal of a failure, in a run directory of its own
  python train.py --config-dir=conf_of_mine model=mine        your own model: a YAML file with a _target_

Flags
  -m           several values for a key or group: run every combination
  --cfg job    print what is composed, and stop
  --config-dir a directory with more choices, such as DIR/model/mine.yaml
  --help model=mobilenet   this page for another choice: the keys of groups change with it
"""


def render(program: str, composed: Mapping[str, Any], config_dir: str | None) -> str:
    """Writes the page.

    Args:
        program: how the command is called.
        composed: the composed configuration, as plain containers; the options of its targets are shown.
        config_dir: a user's own directory of choices.
    """
    roots = [*([Path(config_dir)] if config_dir else []), importlib.resources.files("trainer.conf")]
    page = "\n".join([_USAGE, _groups(roots), _keys(), _options(composed), _EXAMPLES.rstrip()])
    return page.replace("python train.py", program)


def _groups(roots: Sequence[Traversable]) -> str:
    found = {folder.name for root in roots for folder in root.iterdir() if folder.is_dir() and _choices([root], folder.name)}
    lines = ["Groups: group=choice"]
    for group in [*(name for name in GROUPS if name in found), *sorted(found.difference(GROUPS))]:
        choices = _choices(roots, group)
        width = max(len(choice) for choice in choices)
        lines += [f"  {group}", *(f"    {choice:{width}}  {choices[choice]}".rstrip() for choice in sorted(choices))]
    return "\n".join(lines) + "\n"


def _choices(roots: Sequence[Traversable], group: str) -> dict[str, str]:
    """Gives the choices of a group with their explanations; where two files have a name, Hydra takes the first."""
    folders = [folder for root in reversed(roots) if (folder := root.joinpath(group)).is_dir()]
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith(".yaml")]
    return {file.name.removesuffix(".yaml"): first_comment(file.read_bytes().decode(errors="replace")) for file in files}


def _keys() -> str:
    rows = _schema_rows(Experiment, "")
    width = max(len(left) for left, _ in rows)
    lines = [line for left, text in rows for line in _row(left, text, width)]
    return "\n".join(["Keys: key=value", *lines]) + "\n"


def _row(left: str, text: str, width: int) -> list[str]:
    indent = " " * (width + 4)
    return textwrap.wrap(text, _WIDTH, initial_indent=f"  {left:{width}}  ", subsequent_indent=indent)


def _schema_rows(schema: Any, path: str) -> list[tuple[str, str]]:
    rows = []
    for item in fields(schema):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if is_dataclass(default):
            rows += _schema_rows(type(default), f"{path}{item.name}.")
        elif item.name == "fault":
            rows += _schema_rows(Fault, "fault.<name>.")
        elif item.name not in (*GROUPS, "choices"):
            rows.append((f"{path}{item.name}={_shown(default)}", item.metadata["help"]))
    return rows


def _options(composed: Mapping[str, Any]) -> str:
    """Lists the options of the chosen targets, which the schema does not know."""
    lines = ["Keys of the choices composed here"]
    for group in GROUPS:
        node = composed.get(group)
        if isinstance(node, Mapping) and "_target_" in node:
            options = [f"{name}={_shown(value)}" for name, value in node.items() if not str(name).startswith("_")]
            indent = " " * 14
            lines += textwrap.wrap(" ".join(options) or "(none)", _WIDTH, initial_indent=f"  {group + '.':12}", subsequent_indent=indent)
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_shown(item) for item in value)}]"
    return str(value)
