"""`--config-dir`: a user's own choices, which are searched before ours, so that they add to them and replace them. No TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from trainer.errors import ConfigError


class _BeforeOurs(SearchPathPlugin):
    """Hydra's own `--config-dir` is searched last: a file there with the name of one of ours would be ignored without a word."""

    directory: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.directory is not None:
            search_path.prepend("--config-dir", f"file://{self.directory}", SearchPathQuery(provider="main"))


@contextlib.contextmanager
def searched(config_dir: str | Path | None) -> Iterator[None]:
    """Lets Hydra search a directory before our own choices, wherever it composes in this block.

    Raises:
        ConfigError: it is no directory, or holds what is not a user's to replace.
    """
    directory = None if config_dir is None else os.path.abspath(config_dir)
    if directory is not None:
        _check(directory)
    Plugins.instance().register(_BeforeOurs)
    before, _BeforeOurs.directory = _BeforeOurs.directory, directory
    try:
        yield
    finally:
        _BeforeOurs.directory = before


def _check(directory: str) -> None:
    if not os.path.isdir(directory):
        raise ConfigError(f"--config-dir ({directory}): no such directory")
    for name in ("config.yaml", "schema"):
        if os.path.exists(os.path.join(directory, name)):
            raise ConfigError(
                f"--config-dir ({directory}): {name} is a name of ours; put choices in files such as model/mine.yaml, "
                "and values that belong together in experiment/mine.yaml"
            )
