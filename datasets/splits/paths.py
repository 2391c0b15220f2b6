"""Which examples are in which split: files by their names, others by a hash.

Later examples move no other. Also what identifies files.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

logger = logging.getLogger(__name__)

Paths: TypeAlias = str | Sequence[str]
"""A file, a folder or a pattern, or several of them."""

_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
"""Names of folders, and words in the names of files -> the split that they mean."""
_WORD = re.compile(rf"(?:^|[-_.])({'|'.join(_SPLITS)})(?=[-_.]|$)")


class Files(NamedTuple):
    """The files of a split, and the file or folder in which they were found."""

    root: Path
    files: list[Path]


class Splits(NamedTuple):
    """The files of each split; with `train` alone, a part of it is to be tested on."""

    train: Files
    validation: Files | None = None
    test: Files | None = None

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing but `train`."""
        return not self.present.keys() - {"train"}

    @property
    def present(self) -> dict[str, Files]:
        """The splits that there are, by name."""
        return {name: files for name, files in self._asdict().items() if files is not None}


def find_splits(
    path: Paths | None,
    test_path: Paths | None,
    list_files: Callable[[Paths, str], list[Path]],
) -> Splits:
    """Find the files of each split, of any format.

    In a folder they are `train/`, `validation/` or `val/`, and `test/`. Without such folders, they
    are the files in it with these words in their names, as in `train-00000-of-00002`. If none has
    `train`, all are trained on whose names do not start with another of the words.

    Args:
        path: the files to train on, or a folder with those of all splits.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: the path is None, or a folder has a test split alone.
    """
    if path is None:
        raise ValueError("path (null) must name the files to train on, or their folder")

    def found(place: Paths, key: str = "path") -> Files:
        root = place if isinstance(place, str) else place[0]
        return Files(Path(root).expanduser(), list_files(place, key))

    if test_path is not None:
        return Splits(found(path), test=found(test_path, "test_path"))
    root = Path(path).expanduser() if isinstance(path, str) else None
    if root is None or not root.is_dir():
        return Splits(found(path))
    words = [word for word in _SPLITS if (root / word).is_dir()]
    folders = {_SPLITS[word]: root / word for word in words}
    if len(folders) < len(words):
        raise ValueError(f"path ({root}) has both val/ and validation/; move the files into one")
    if "train" in folders:
        return Splits(**{split: found(str(folder)) for split, folder in folders.items()})
    if folders:
        raise ValueError(f"path ({root}) has {next(iter(folders.values())).name}/ but no train/")
    return _divided_by_names(found(path))


def _divided_by_names(whole: Files) -> Splits:
    """Divide the files of a folder by the names of those directly in it."""

    def by_name(find: Callable[[str], re.Match[str] | None]) -> dict[str, list[Path]]:
        named: dict[str, list[Path]] = {}
        for file in whole.files:
            word = find(file.name) if file.parent == whole.root else None
            named.setdefault(_SPLITS[word[1]] if word else "", []).append(file)
        return named

    named = by_name(_WORD.search)
    if "train" not in named:  # then it is those without such a prefix
        named = by_name(_WORD.match)
        named["train"] = named.pop("", [])
    others = named.pop("", [])
    if not named["train"] or len(named) == 1:
        return Splits(whole)
    if others:
        logger.warning(
            "path (%s): %d files, such as %s, are not used: others are named train, validation or "
            "test",
            *(whole.root, len(others), others[0].name),
        )
    return Splits(**{split: Files(whole.root, files) for split, files in named.items()})


def find_files(
    path: Paths | None,
    key: str = "path",
    *,
    suffixes: Sequence[str],
    name: re.Pattern[str] | None = None,
) -> list[Path]:
    """Return the files that a path names, sorted within each of its items.

    Args:
        path: a file, a pattern, or a folder, whose files with these suffixes are meant. A suffix
            may be followed by `-00000-of-00004`. Or several of them.
        name: matches the names of files in a folder; None: those with the suffixes.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the path is None.
    """
    listed = " or ".join(suffixes)
    if path is None:
        raise ValueError(
            f"{key} (null) must name a file, a folder of {listed} files, or a pattern with *"
        )
    name = name or re.compile(rf"({'|'.join(map(re.escape, suffixes))})(-|$)")
    files: dict[Path, None] = {}
    for item in [path] if isinstance(path, str) else path:
        root = Path(item).expanduser()
        if root.is_dir():
            paths = [file for file in sorted(root.iterdir()) if name.search(file.name)]
        elif root.is_file():
            paths = [root]
        else:
            paths = [*map(Path, sorted(glob.glob(str(root), recursive=True)))]
        paths = [file for file in paths if file.is_file()]
        if not paths:
            problem = f"no {listed} file in it" if root.is_dir() else "no such file"
            raise FileNotFoundError(f"{key} ({root}): {problem}")
        files |= dict.fromkeys(paths)
    return list(files)


def visible_files(root: Path) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden, nor in hidden folders, by name.

    Linked folders count too, but not a link to a folder that it is in: it has no end.
    """
    for folder, folders, names in os.walk(root, followlinks=True):
        here = Path(folder).resolve()
        shown = [name for name in sorted(folders) if not name.startswith(".")]
        folders[:] = [x for x in shown if not here.is_relative_to(Path(folder, x).resolve())]
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def files_identity(paths: Iterable[Path]) -> str:
    """Return a text that changes with the names, sizes or times of files, also those in folders."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            status = file.stat()
            text = f"{file.absolute()}\0{status.st_size} {status.st_mtime_ns}\n"
            digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()


def hash_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each of `numbers`, [N] integers, the same on every machine."""
    return _hash(numbers, 1)


def hash_rows(file_name: str, numbers: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each row of a file, [N], by its name and the row's number."""
    digest = hashlib.sha256(file_name.encode()).digest()
    return _hash(numbers, int.from_bytes(digest[:8], "little"))


def _hash(numbers: np.ndarray, start: int) -> np.ndarray:
    """Return a hash of consecutive numbers: SplitMix64 (Steele et al. 2014)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def hash_texts(texts: Iterable[str]) -> np.ndarray:
    """Return a number in [0, 1) for each text, [N] float64, the same on every machine."""
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return np.array([int.from_bytes(x[:6], "big") / 2**48 for x in digests], np.float64)


def hash_files(files: Iterable[Path], depth: int) -> np.ndarray:
    """Return a number in [0, 1) for each file, [N], by the last `depth` parts of its path."""
    return hash_texts("/".join(file.parts[-depth:]) for file in files)


def divided(
    found: Mapping[str, Any],
    hashes: Callable[[Any], np.ndarray],
    test_fraction: float,
    what: str,
    select: Callable[[Any, np.ndarray], Any] = lambda examples, rows: [examples[x] for x in rows],
) -> dict[str, Any]:
    """Return the examples of each split, of which none has examples of another.

    Where all are to train on, their hashes choose those to test on. Where others are to validate,
    and none to test on, none are tested on.

    Args:
        found: examples by split, such as a list of files.
        hashes: returns a number in [0, 1) for each of some examples, [N].
        what: what the examples are and where, for messages.
        select: returns the examples of some numbers, ascending.

    Raises:
        ValueError: one of the splits is empty.
    """
    train = found["train"]
    if len(found) > 1:
        return {"test": select(train, np.zeros(0, np.int64)), **found}
    tested = hashes(train) < test_fraction
    if tested.all() or not tested.any():
        empty = "train" if tested.all() else "test"
        raise ValueError(
            f"test_fraction ({test_fraction}) leaves none of the {len(tested)} {what} in the "
            f"{empty} split; change it, or add a separate test split"
        )
    parts = {"train": ~tested, "test": tested}
    return {name: select(train, np.flatnonzero(part)) for name, part in parts.items()}
