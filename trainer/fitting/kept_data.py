"""Keeps examples in a folder that is named by its content."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import writing
from trainer.fitting.read_data import batches_of, read
from trainer.text import format_bytes


class KeptData:
    """Examples in a folder.

    Attributes:
        path: the folder, which `trainer.datasets.fit_data.kept_arrays` reads.
        size: of its arrays, in bytes.
        batch_size: how the examples are batched already; None: they are not.
        unit: rows that stay together in the order of an epoch, as in the program; 0: all.
        first: the first example by name, nests of arrays [1, ...].
    """

    def __init__(self, data: Any, name: str, folder: Path, steps: int | None = None) -> None:
        """Keep examples below a folder.

        Args:
            data: as `read_data.read` takes them.
            name: theirs in messages.
            folder: where.
            steps: of the whole training, for data without an end; None: unknown.

        Raises:
            ConfigError: they are nothing that can be kept.
        """
        examples = read(data, name, steps)
        self.batch_size = examples.batch_size
        self.unit = examples.unit
        parts = (_first(part, examples.columns) for part in examples.structure)
        self.first = batches_of.named_parts(parts, batched=True)
        arrays: dict[str, np.ndarray] = {}
        kinds = [_stored(str(i), column, arrays) for i, column in enumerate(examples.columns)]
        text = json.dumps({"structure": examples.structure, "kinds": kinds})
        self.size = sum(array.nbytes for array in arrays.values())
        self.path = folder / f"data-{_digest(text, arrays)}"
        if not self.path.exists():
            _write(self.path, text, arrays)

    def __str__(self) -> str:
        return f"{format_bytes(self.size)} in {self.path}"


def _first(structure: Any, columns: Sequence[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _first(item, columns) for key, item in structure.items()}
    if isinstance(structure, list):
        return [_first(item, columns) for item in structure]
    if structure is None:
        return None
    first = columns[structure][:1]
    return first.array if isinstance(first, batches_of.PaddedRows) else first


def _stored(name: str, column: Any, arrays: dict[str, np.ndarray]) -> str:
    """Add what a column is stored as to arrays by name; return its kind.

    Texts are their bytes, one after the other, and the ends of each.
    """
    if isinstance(column, batches_of.PaddedRows):
        arrays[f"{name}.sizes"] = column.sizes
        column = column.array
    if column.dtype != object:
        arrays[name] = column
        return "numbers"
    kind = "str" if column.size and isinstance(column.flat[0], str) else "bytes"
    texts = [text.encode() if isinstance(text, str) else text for text in column.flat]
    arrays[name] = np.frombuffer(b"".join(texts), np.uint8)
    arrays[f"{name}.ends"] = np.cumsum(list(map(len, texts)), dtype=np.int64)
    arrays[f"{name}.shape"] = np.asarray(column.shape)
    return kind


def _digest(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for array in arrays.values():
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:12]


def _write(path: Path, text: str, arrays: dict[str, np.ndarray]) -> None:
    """Write a folder, or leave it to whoever writes the same at the same time."""
    own = f"{socket.gethostname()}.{os.getpid()}"
    temporary = path.with_name(f".{path.name}.{own}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            temporary.mkdir(parents=True)
            _remove_left(path.parent)
            (temporary / "structure.json").write_text(text, encoding="utf-8")
            with (temporary / "arrays.npz").open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            try:
                temporary.rename(path)
            except OSError:
                if not path.exists():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    """Remove what processes of this host that were killed have not finished."""
    for left in folder.glob(f".data-*.{socket.gethostname()}.*.*.tmp"):
        try:
            os.kill(int(left.name.split(".")[-3]), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (ValueError, PermissionError):  # not ours
            continue
