"""The choices of each group, and the comments of their YAML files. No TensorFlow."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from trainer.config import yaml_text
from trainer.config.schema import GROUPS


class Choices:
    """The choices of every group.

    Attributes:
        chosen: the name that was chosen in each group, or None if there are several.
    """

    def __init__(self, config_dir: str | None, chosen: Mapping[str, Any]) -> None:
        """Read the choices of `config_dir`, whose files replace ours of the same name."""
        self.chosen = chosen
        self._roots: list[Traversable] = [importlib.resources.files("trainer.conf")]
        if config_dir is not None:
            self._roots.insert(0, Path(config_dir))

    def groups(self) -> list[str]:
        """Return the groups: ours in their order, then the user's."""
        names = {
            folder.name
            for root in self._roots
            for folder in root.iterdir()
            if folder.is_dir() and self._files(folder.name)
        }
        return [
            *(name for name in GROUPS if name in names),
            *sorted(names.difference(GROUPS, ["schema", "hydra"])),
        ]

    def places(self) -> dict[str, str]:
        """Return the groups that are chosen within others: `task.generator` -> its group.

        They are chosen by `model@task.generator=<choice>`.
        """
        names = [name for name in reversed(list(self.chosen)) if "@" in name]
        return {place: group for group, _, place in (name.partition("@") for name in names)}

    def of(self, group: str) -> dict[str, str]:
        """Return the choices of a group, sorted, each with its explanation."""
        files = self._files(group.partition("@")[0])
        return {name: first_comment(_text(file)) for name, file in sorted(files.items())}

    def explanation(self, group: str) -> str:
        """Return the explanation of the chosen choice of a group, also of one at a place."""
        return self.of(group).get(str(self.chosen.get(group)), "")

    def recipe(self) -> str:
        """Return the text of the chosen recipe, or "" without one."""
        file = self._files("experiment").get(str(self.chosen.get("experiment")))
        return _text(file) if file else ""

    def key_comments(self) -> dict[str, str]:
        """Return the comments of the keys of all choices, also of those within others."""
        comments = {}
        for name in [*(name for name in GROUPS if not self.chosen.get(name)), *self.chosen]:
            group, _, place = name.partition("@")
            chosen = self.chosen.get(name)
            # Where several are chosen, each has its own keys.
            for choice in [str(chosen)] if chosen else self._files(group):
                for key, text in self._key_comments(group, choice).items():
                    comments[f"{place or group.replace('/', '.')}.{key}"] = text
        return comments

    def _key_comments(self, group: str, name: str, *builders: str) -> dict[str, str]:
        """Return the comments of a choice; `builders` build on it, and end a cycle."""
        files = self._files(group)
        if name not in files or name in builders:
            return {}
        comments: dict[str, str] = {}
        for base in self._defaults(group, name):
            if isinstance(base, str):
                comments |= self._key_comments(group, base, name, *builders)
        own = key_comments(_text(files[name]))
        return comments | {key: text for key, text in own.items() if text}

    def _defaults(self, group: str, name: str) -> list[Any]:
        file = self._files(group).get(name)
        content = yaml_text.load(_text(file)) if file else None
        return (content.get("defaults") or []) if isinstance(content, Mapping) else []

    def _files(self, group: str) -> dict[str, Traversable]:
        folders = [
            folder for root in reversed(self._roots) if (folder := root.joinpath(group)).is_dir()
        ]
        files = [
            file
            for folder in folders
            for file in folder.iterdir()
            if file.name.endswith(".yaml") and file.is_file()
        ]
        return {file.name.removesuffix(".yaml"): file for file in files}


def _text(file: Traversable) -> str:
    return file.read_bytes().decode(errors="replace")


def first_comment(text: str) -> str:
    """Return the first comment line of a YAML file, its explanation."""
    lines = (line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in lines if line and not line.startswith("@package")), "")


def key_comments(text: str) -> dict[str, str]:
    """Return the comment of every key that holds a value, but for the list of defaults.

    A comment is behind the value, or in the lines right above it; "" if there is none.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    yaml_text.check(text)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return dict(_walk(node, "", text.splitlines())) if isinstance(node, yaml.MappingNode) else {}


def _walk(node: yaml.MappingNode, path: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for key, value in node.value:
        name = f"{path}{key.value}"
        if name == "defaults":
            continue  # a key of Hydra's
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _walk(value, f"{name}.", lines)
        else:
            yield name, _behind(value, lines) or _above(key.start_mark.line, lines)


def _behind(value: yaml.Node, lines: list[str]) -> str:
    end = value.end_mark
    rest = lines[end.line][end.column :].strip() if end.line < len(lines) else ""
    return rest.lstrip("# ") if rest.startswith("#") else ""


def _above(line: int, lines: list[str]) -> str:
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(text.strip().lstrip("# ") for text in lines[first:line])
