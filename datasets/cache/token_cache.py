"""Encoded texts in a file, so that they are encoded once and not whenever a process starts."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer.datasets.splits.paths import replacing
from trainer.user_cache import FOLDER, make_room, mark_used

logger = logging.getLogger(__name__)

_VERSION = 2  # of the file; part of its name


class Tokens(NamedTuple):
    """The texts of a split.

    Attributes:
        numbers: tokens of all texts, one after the other, [T] unsigned.
        offsets: text i has those from offsets[i] to offsets[i + 1], [N + 1] int64.
        labels: number of each text's class, [N] int64; None: there are none.
    """

    numbers: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None


class Corpus(NamedTuple):
    """The splits by name, and the names of the classes."""

    splits: dict[str, Tokens]
    classes: tuple[str, ...]


def key(rule: Sequence[Any], files: Sequence[Path]) -> str:
    """Return a name that changes with the way of encoding, and with any of the files.

    Files are compared by path, size and time of change, as `make` does.
    """
    stats = [(str(path.absolute()), path.stat()) for path in files]
    files_state = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    text = json.dumps([_VERSION, *rule, files_state])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def load(cache: str | Path | None, name: str, build: Callable[[], Corpus]) -> Corpus:
    """Return the corpus of that name, from the cache or built and kept there.

    Several processes may build the same one at a time: each puts a complete file in place. Where
    the folder cannot be written, it is built each time.

    Args:
        cache: the folder where it is kept; None: ~/.cache/steadfast.
        name: as `key` makes it.
        build: makes it.
    """
    folder = Path(cache or FOLDER).expanduser()
    file = folder / f"text-{name}.npz"
    mark_used(file)
    try:
        return _read(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("cannot read %s (%s): the texts are encoded again", file, error)
    corpus = build()
    try:
        _write(file, corpus)
        make_room(file, file.stat().st_size)
    except OSError as error:
        logger.warning(
            "cannot keep tokens in %s (%s); set dataset.cache_dir=<folder>", folder, error
        )
    return corpus


def load_sequence(
    cache: str | Path | None,
    name: str,
    dtype: np.dtype,
    build: Callable[[], Iterator[np.ndarray]],
) -> np.ndarray:
    """Return the sequence of tokens of that name, [T], mapped from a file of the cache.

    Args:
        cache: the folder where it is kept; None: ~/.cache/steadfast.
        name: as `key` makes it.
        dtype: of its tokens.
        build: yields its parts, which need not fit in memory together.
    """
    folder = Path(cache or FOLDER).expanduser()
    file = folder / f"tokens-{name}.bin"
    if not file.is_file():
        try:
            with replacing(file) as out:
                for part in build():
                    out.write(part.tobytes())
            make_room(file, file.stat().st_size)
        except OSError as error:
            logger.warning(
                "cannot keep tokens in %s (%s); set dataset.cache_dir=<folder>", folder, error
            )
            return np.concatenate([np.zeros(0, dtype), *build()])
    mark_used(file)
    if not file.stat().st_size:
        return np.zeros(0, dtype)  # which cannot be mapped
    return np.memmap(file, dtype, "r")


def _read(file: Path) -> Corpus:
    with np.load(file, allow_pickle=False) as archive:
        splits = {
            split: Tokens(
                archive[f"{split}_numbers"],
                archive[f"{split}_offsets"],
                archive.get(f"{split}_labels"),
            )
            for split in json.loads(str(archive["splits"]))
        }
        return Corpus(splits, tuple(json.loads(str(archive["classes"]))))


def _write(file: Path, corpus: Corpus) -> None:
    arrays = {
        f"{split}_{part}": array
        for split, tokens in corpus.splits.items()
        for part, array in tokens._asdict().items()
        if array is not None
    }
    names = {"splits": [*corpus.splits], "classes": corpus.classes}
    texts = {name: np.array(json.dumps(value)) for name, value in names.items()}
    with replacing(file) as out:
        np.savez(out, **texts, **arrays)
