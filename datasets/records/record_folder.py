"""A folder of records: which files are for training and for testing."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from trainer.datasets.records.record_index import find_files
from trainer.datasets.splits.paths import split_folders

logger = logging.getLogger(__name__)

_HELD_OUT = (("test",), ("val", "validation"))
"""Words of the files to test on; those of validation only where there are no others."""


def find_splits(
    path: str | Sequence[str], test_path: str | Sequence[str] | None
) -> tuple[list[Path], list[Path] | None]:
    """Find the files of both splits.

    Args:
        path: a file, a folder or a pattern, or several of them.
        test_path: the files for testing; None: a folder may tell: by folders train/ and test/ (or
            val/, validation/), or by such words in the names of files.

    Returns:
        The files to train on; and those to test on, or None for a fraction of the records.

    Raises:
        FileNotFoundError: there are no such files.
    """
    if test_path is not None:
        return find_files("path", path), find_files("test_path", test_path)
    root = Path(path).expanduser() if isinstance(path, str) else None
    if root is None or not root.is_dir():
        return find_files("path", path), None
    folder, held_out = split_folders(root)
    if folder != root:
        return find_files("path", str(folder)), held_out and find_files("path", str(held_out))
    files = find_files("path", str(root))
    train = _named(files, "train")
    test, *others = [named for words in _HELD_OUT if (named := _named(files, *words))] or [[]]
    if train and others:
        logger.warning(
            "path (%s): %s is not used, nor are the other files like it; to select checkpoints "
            "by them, add dataset.validation=<pattern>",
            *(root, others[0][0].name),
        )
    return (train, test) if train and test else (files, None)


def _named(files: Sequence[Path], *words: str) -> list[Path]:
    """Return the files whose names have one of some words."""
    pattern = re.compile(rf"(^|[-_.])({'|'.join(words)})([-_.]|$)")
    return [file for file in files if pattern.search(file.name)]
