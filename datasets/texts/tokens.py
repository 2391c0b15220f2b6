"""What makes tokens of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from trainer.optional_packages import import_extra
from trainer.text import first_line

BYTES = "bytes"
_BLOCK = 1000  # texts that are encoded at a time


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
