"""What `--help` prints: the groups with their choices, the keys with their defaults, and examples. No TensorFlow."""

from __future__ import annotations

import importlib.resources
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from trainer.config import GROUPS, Experiment

_WIDTH = 120
_USAGE = """\
Steadfast: declare an experiment, train it on anything from a laptop to a pod, and never lose a step.

usage: python train.py [group=choice ...] [key=value ...] [-m] [--config-dir DIR] [--cfg job]
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
  python train.py --config-dir=conf_of_mine model=mine        your own model: a YAML file with a _target_

Flags
  -m           several values for a key or group: run every combination
  --cfg job    print what is composed, and stop
  --config-dir a directory with more choices, such as DIR/model/mine.yaml
  --help model=mobilenet   this page for another choice: the keys of groups change with it
"""


def register() -> None:
    """Makes the page available to conf/hydra/help/steadfast.yaml."""
    OmegaConf.register_new_resolver("steadfast_help", lambda *, _root_: render(_root_), replace=True)


def render(composed: Any) -> str:
    """Writes the page.

    Args:
        composed: the composed configuration: options of targets are shown as they are chosen.
    """
    sections = [_USAGE, _groups(), _keys(), _options(composed), _EXAMPLES.rstrip()]
    # Hydra substitutes $NAME in this text.
    return "\n".join(sections).replace("$", "$$")


def first_comment(text: str) -> str:
    """Gives the first comment line of a YAML file, its explanation."""
    comments = (line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in comments if line and not line.startswith("@package")), "")


def _groups() -> str:
    loader = GlobalHydra.instance().config_loader()
    found = [name for name in loader.list_groups("") if name not in ("hydra", "schema")]
    ordered = [name for name in GROUPS if name in found] + sorted(name for name in found if name not in GROUPS)
    lines = ["Groups: group=choice"]
    for group in ordered:
        choices = loader.get_group_options(group, ObjectType.CONFIG)
        width = max([len(choice) for choice in choices], default=0)
        lines += [f"  {group}", *(f"    {choice:{width}}  {_explanation(group, choice)}".rstrip() for choice in choices)]
    return "\n".join(lines) + "\n"


def _explanation(group: str, choice: str) -> str:
    for source in GlobalHydra.instance().config_loader().get_sources():
        if source.scheme() not in ("pkg", "file"):
            continue
        root: Any = importlib.resources.files(source.path) if source.scheme() == "pkg" else Path(source.path)
        file = root.joinpath(group, f"{choice}.yaml")
        if file.is_file():
            return first_comment(file.read_text(encoding="utf-8"))
    return ""


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
        elif item.name not in (*GROUPS, "choices"):
            rows.append((f"{path}{item.name}={_shown(default)}", item.metadata["help"]))
    return rows


def _options(composed: Any) -> str:
    """Lists the options of the chosen targets, which the schema does not know."""
    lines = ["Keys of the choices composed here"]
    for group in GROUPS:
        node = composed.get(group)
        if OmegaConf.is_dict(node) and "_target_" in node:
            options = [f"{name}={_shown(value)}" for name, value in node.items_ex(resolve=False) if not str(name).startswith("_")]
            indent = " " * 14
            lines += textwrap.wrap(" ".join(options) or "(none)", _WIDTH, initial_indent=f"  {group + '.':12}", subsequent_indent=indent)
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) or OmegaConf.is_list(value):
        return f"[{','.join(_shown(item) for item in value)}]"
    return str(value)
