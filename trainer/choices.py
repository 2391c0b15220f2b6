"""What there is to choose from: the YAML files of each group, ours and the user's, and what they say of themselves. No TensorFlow."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from trainer import comments
from trainer.schema import GROUPS


class Choices:
    """The choices of every group.

    Attributes:
        chosen: the name that was chosen in each group; None where there is none, or several.
    """

    def __init__(self, config_dir: str | None, chosen: Mapping[str, Any]):
        """Takes the user's own directory of choices, whose files come before ours of the same name, and what was chosen."""
        self.chosen = chosen
        self._roots: list[Traversable] = [importlib.resources.files("trainer.conf")]
        if config_dir is not None:
            self._roots.insert(0, Path(config_dir))

    def groups(self) -> list[str]:
        """Lists the groups: ours in their order, then the user's."""
        found = {folder.name for root in self._roots for folder in root.iterdir() if folder.is_dir() and self._files(folder.name)}
        return [*(name for name in GROUPS if name in found), *sorted(found.difference(GROUPS, ["schema", "hydra"]))]

    def of(self, group: str) -> dict[str, str]:
        """Gives the choices of a group, sorted, each with its explanation."""
        return {name: comments.first_comment(_text(file)) for name, file in sorted(self._files(group).items())}

    def explanation(self, group: str) -> str:
        """Gives the explanation of what is chosen in a group."""
        return self.of(group).get(str(self.chosen.get(group)), "")

    def key_comments(self, group: str) -> dict[str, str]:
        """Gives the comments of the keys of what is chosen in a group, also of the choices that it builds on."""
        names = [str(self.chosen[group])] if self.chosen.get(group) else list(self._files(group))
        return {key: text for name in names for key, text in self._key_comments(group, name).items()}

    def overridden(self, group: str) -> dict[str, str]:
        """Gives what the file that is chosen in a group chooses in other groups: `override /model: cnn`."""
        items = [item for item in self._defaults(group, str(self.chosen.get(group))) if isinstance(item, Mapping)]
        return {str(key).removeprefix("override ").strip("/ "): str(choice) for item in items for key, choice in item.items()}

    def _key_comments(self, group: str, name: str, *above: str) -> dict[str, str]:
        files = self._files(group)
        if name not in files or name in above:
            return {}
        bases = [item for item in self._defaults(group, name) if isinstance(item, str)]
        found = {key: text for base in bases for key, text in self._key_comments(group, base, name, *above).items()}
        own = comments.key_comments(_text(files[name]))
        return found | {key: text for key, text in own.items() if text}

    def _defaults(self, group: str, name: str) -> list[Any]:
        file = self._files(group).get(name)
        content = yaml.safe_load(_text(file)) if file else None
        return (content.get("defaults") or []) if isinstance(content, Mapping) else []

    def _files(self, group: str) -> dict[str, Traversable]:
        folders = [folder for root in reversed(self._roots) if (folder := root.joinpath(group)).is_dir()]
        files = [file for folder in folders for file in folder.iterdir() if file.name.endswith(".yaml") and file.is_file()]
        return {file.name.removesuffix(".yaml"): file for file in files}


def _text(file: Traversable) -> str:
    return file.read_bytes().decode(errors="replace")
