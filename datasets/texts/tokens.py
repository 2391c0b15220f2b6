"""Tokens of texts: what makes them, and a file that keeps them, so that they are made once."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np

from trainer.datasets.splits.paths import replacing
from trainer.optional_packages import import_extra
from trainer.text import first_line
from trainer.user_cache import FOLDER, make_room, mark_used

logger = logging.getLogger(__name__)

BYTES = "bytes"
_BLOCK = 1000  # texts that are encoded at a time
_VERSION = 2  # of the file that keeps tokens; part of its name


@dataclass(frozen=True)
class Tokenizer:
    """Turns texts into numbers from 0.

    Attributes:
        fingerprint: differs for tokenizers that encode differently.
    """

    encode: Callable[[Sequence[str]], list[Sequence[int]]]
    decode: Callable[[Sequence[int]], str]
    size: int
    fingerprint: str

    @property
    def dtype(self) -> np.dtype:
        """The smallest type for the numbers."""
        return np.min_scalar_type(self.size - 1)

    def tokens(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the numbers of each text, [T] of `dtype`; a block of texts is encoded at a time."""
        texts = iter(texts)
        while block := list(islice(texts, _BLOCK)):
            for numbers in self.encode(block):
                is_bytes = isinstance(numbers, bytes)
                yield (
                    np.frombuffer(numbers, np.uint8) if is_bytes else np.array(numbers, self.dtype)
                )


_Parts: TypeAlias = tuple[Callable[[Sequence[str]], list[Any]], Callable[[Sequence[int]], str], int]
"""What encodes and decodes, and how many numbers there are."""


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer.

    Args:
        name: `bytes`: a token for each byte of UTF-8; or the path of a `.json` file of Hugging
            Face's tokenizers, or of a SentencePiece `.model`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a tokenizer, or the library that reads it is missing.
    """
    if name == BYTES:
        return Tokenizer(
            lambda texts: [text.encode() for text in texts],
            lambda numbers: bytes(numbers).decode(errors="replace"),
            256,
            BYTES,
        )
    path = Path(name).expanduser()
    if path.suffix not in (".json", ".model"):
        raise ValueError(
            f"tokenizer ({name}) must be bytes, a tokenizers file .json or a SentencePiece .model"
        )
    if not path.is_file():
        raise FileNotFoundError(f"tokenizer ({name}): no such file")
    content = path.read_bytes()
    fingerprint = hashlib.sha256(content).hexdigest()
    package, parts = (
        ("tokenizers", _tokenizers) if path.suffix == ".json" else ("sentencepiece", _sentencepiece)
    )
    library = import_extra(package, "tokenizers", f"tokenizer ({name})")
    try:
        encode, decode, size = parts(library, content)
    except Exception as error:  # the libraries raise bare Exceptions
        reason = first_line(error)
        raise ValueError(f"tokenizer ({name}) cannot be read: {reason}") from error
    return Tokenizer(encode, decode, size, fingerprint)


def _tokenizers(library: ModuleType, content: bytes) -> _Parts:
    tokenizer = library.Tokenizer.from_str(content.decode())
    # The file may request both; here texts have their own lengths until a batch is made.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return (
        lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(list(texts))],
        lambda numbers: tokenizer.decode(list(numbers)),
        tokenizer.get_vocab_size(),
    )


def _sentencepiece(library: ModuleType, content: bytes) -> _Parts:
    processor = library.SentencePieceProcessor(model_proto=content)
    return (
        lambda texts: processor.encode(list(texts)),
        lambda numbers: processor.decode(list(numbers)),
        processor.get_piece_size(),
    )


class Tokens(NamedTuple):
    """The texts of a split.

    Attributes:
        numbers: tokens of all texts, one after the other, [T] unsigned.
        offsets: text i has those from offsets[i] to offsets[i + 1], [N + 1] int64.
        labels: number of each text's class, [N] int64, or None.
    """

    numbers: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None


class Corpus(NamedTuple):
    """The splits by name, and the names of the classes."""

    splits: dict[str, Tokens]
    classes: tuple[str, ...]


def cache_key(rule: Sequence[Any], files: Sequence[Path]) -> str:
    """Return a name that changes with the way of encoding, and with any of the files.

    Files are compared by path, size and time of change, as `make` does.
    """
    stats = [(str(path.absolute()), path.stat()) for path in files]
    files_state = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    text = json.dumps([_VERSION, *rule, files_state])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def kept_corpus(cache: str | Path | None, key: str, build: Callable[[], Corpus]) -> Corpus:
    """Return a corpus, from the cache or built and kept there.

    Several processes may build the same one at a time: each puts a complete file in place. Where
    the folder cannot be written, it is built each time.
    """
    file = Path(cache or FOLDER).expanduser() / f"text-{key}.npz"
    try:
        corpus = _read(file)
        mark_used(file)
        return corpus
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("cannot read %s (%s): the texts are encoded again", file, error)
    corpus = build()
    _keep(file, lambda out: _write(out, corpus))
    return corpus


def kept_sequence(
    cache: str | Path | None, key: str, dtype: np.dtype, build: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """Return a sequence of tokens, [T], mapped from a file of the cache."""
    file = Path(cache or FOLDER).expanduser() / f"tokens-{key}.bin"
    if file.is_file():
        mark_used(file)
    elif not _keep(file, lambda out: out.writelines(part.data for part in build())):
        return np.concatenate([np.zeros(0, dtype), *build()])
    if not file.stat().st_size:
        return np.zeros(0, dtype)  # which cannot be mapped
    return np.memmap(file, dtype, "r")


def _keep(file: Path, write: Callable[[IO[bytes]], None]) -> bool:
    """Write a file of the cache; return whether its folder can be written."""
    try:
        with replacing(file) as out:
            write(out)
        make_room(file, file.stat().st_size)
    except OSError as error:
        logger.warning(
            "cannot keep tokens in %s (%s); set dataset.cache_dir=<folder>", file.parent, error
        )
        return False
    return True


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


def _write(out: IO[bytes], corpus: Corpus) -> None:
    arrays = {
        f"{split}_{part}": array
        for split, tokens in corpus.splits.items()
        for part, array in tokens._asdict().items()
        if array is not None
    }
    names = {"splits": [*corpus.splits], "classes": corpus.classes}
    np.savez(out, **arrays, **{name: np.array(json.dumps(value)) for name, value in names.items()})
