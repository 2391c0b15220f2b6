"""A folder of records: which files are for training and for testing, and its description.

`dataset.json`, which `convert` writes, names the files of both splits and says what is in them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.datasets.records.record_index import find_files

logger = logging.getLogger(__name__)

DESCRIPTION = "dataset.json"
_HELD_OUT = (("test",), ("val", "validation"))
"""Words of the files to test on; those of validation only where there are no others."""


@dataclass(frozen=True)
class RecordFolder:
    """The files of a dataset.

    Attributes:
        train: files to train on.
        test: files to test on; None: a share of the records of the others.
        description: what a converter says of them: `features`, `num_classes`, ...; may be empty.
    """

    train: list[Path]
    test: list[Path] | None
    description: Mapping[str, Any] = field(default_factory=dict)


def find_splits(path: str | Sequence[str], test_path: str | Sequence[str] | None) -> RecordFolder:
    """Find the files of both splits.

    Args:
        path: a file, a folder or a pattern, or several of them.
        test_path: the files for testing; None: a folder may tell: by its `dataset.json`, by folders
            train/ and test/ (or val/, validation/), or by such words in the names of files.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: the description cannot be read.
    """
    root = Path(path).expanduser() if isinstance(path, str) else None
    description = {} if root is None else _description(root)
    if test_path is not None:
        return RecordFolder(
            find_files("path", path), find_files("test_path", test_path), description
        )
    if root is None or not root.is_dir():
        return RecordFolder(find_files("path", path), None, description)
    if description:
        folders = [[root / name for name in description[split]] for split in ("train", "test")]
        for file in (*folders[0], *folders[1]):
            if not file.is_file():
                raise FileNotFoundError(
                    f"path ({root}): {file.name}, which {DESCRIPTION} names, is missing; "
                    "convert again"
                )
        return RecordFolder(folders[0], folders[1], description)
    held_out = next(
        (root / name for name in ("test", "val", "validation") if (root / name).is_dir()), None
    )
    if (root / "train").is_dir():
        test = None if held_out is None else find_files("path", str(held_out))
        return RecordFolder(find_files("path", str(root / "train")), test)
    files = find_files("path", str(root))
    train = _named(files, "train")
    test, *others = [named for words in _HELD_OUT if (named := _named(files, *words))] or [[]]
    if train and others:
        logger.warning(
            "path (%s): %s is not used, nor are the other files like it; to select checkpoints "
            "by them, add dataset.validation=<pattern>",
            *(root, others[0][0].name),
        )
    return RecordFolder(train, test) if train and test else RecordFolder(files, None)


def _named(files: Sequence[Path], *words: str) -> list[Path]:
    """Return the files whose names have one of some words."""
    pattern = re.compile(rf"(^|[-_.])({'|'.join(words)})([-_.]|$)")
    return [file for file in files if pattern.search(file.name)]


def _description(root: Path) -> dict[str, Any]:
    file = root / DESCRIPTION
    if not file.is_file():
        return {}
    try:
        description: dict[str, Any] = json.loads(file.read_text())
        needed = {"train", "test", "features", "num_classes"}
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}; convert again, or remove it") from error
    if not isinstance(description, dict) or not needed <= description.keys():
        raise ValueError(f"{file} lacks one of {', '.join(sorted(needed))}; convert again")
    return description
