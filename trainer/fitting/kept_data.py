"""Reads what `model.fit` takes, as it takes it, and keeps it in a folder named by its content."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigError
from trainer.files import writing
from trainer.text import format_bytes

# By name: packages of the trainer do not import datasets.
batches_of: Any = import_module("trainer.datasets.splits.batches")

MAX_BYTES = 4 << 30
"""Of what is read to its end: every process that trains holds it in memory."""
_FUNCTION_FIX = "give fit a function that returns it"
_STEPS_FIX = "give steps_per_epoch, as to model.fit"


@dataclass(frozen=True)
class Examples:
    """Examples, or the batches that a program has made of them.

    Attributes:
        structure: a nest for each of x, y, sample_weight, with numbers of columns.
        columns: the rows of each array, see `trainer.datasets.splits.batches.Column`.
        batch_size: how they are batched; None: they are not.
        unit: rows that stay together in the order of an epoch, as in the program; 0: all.
    """

    structure: list[Any]
    columns: list[Any]
    batch_size: int | None = None
    unit: int = 1


def is_dataset(value: Any) -> bool:
    """Return whether a value is a `tf.data.Dataset`."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.data.Dataset)


def read(data: Any, name: str, steps: int | None = None) -> Examples:
    """Read data to their end.

    Args:
        steps: of the whole training, for data without an end; None: unknown.

    Raises:
        ConfigError: they cannot be read, or are nothing that `fit` takes.
    """
    if is_dataset(data):
        return _of_dataset(data, name, steps)
    if not batches_of.makes_batches(data):
        return _of_batches([data], name, is_batched=False)
    batches = batches_of.one_pass(data)
    if not batches_of.is_sequence(data):
        return _of_batches(itertools.islice(batches, steps), name)
    first = [_encoded_all(data[0], name)[1] for _ in range(2)]
    if any(
        batches_of.content(one) != batches_of.content(two) for one, two in zip(*first, strict=True)
    ):
        raise ConfigError(
            f"{name} ({type(data).__name__}) makes another batch 0 each time: every epoch would "
            f"get the same; {_FUNCTION_FIX}"
        )
    return _of_batches(batches, name, is_shuffled=True)


def describe(
    value: Any, name: str, steps: int | None
) -> tuple[dict[str, Any], int | None, int | None]:
    """Return the facts of data that the training processes make too.

    Without the `steps` of an epoch, data of unknown length are read once, to count.

    Returns:
        The first example or batch by name; the rows of a batch (None: there are single
        examples); and the rows of an epoch (None: the data are arrays).

    Raises:
        ConfigError: there is no batch, or no end.
    """
    if not is_dataset(value) and not batches_of.makes_batches(value):
        return _named(value), None, None
    count, is_batched, batches = -2, True, batches_of.one_pass(value)
    if is_dataset(value):
        elements = _elements()
        is_batched = elements.may_be_batches(value)
        count = elements.num_examples(value) if is_batched else int(value.cardinality())
        batches = iter(value if is_batched else value.batch(1))
    first = next(batches, None)
    if first is None:
        raise ConfigError(f"{name} ({type(value).__name__}) has no batch")
    size = _rows(first)
    if count < 0 and steps is None:
        if count == -1:
            raise ConfigError(f"{name} is a tf.data.Dataset without an end; {_STEPS_FIX}")
        print(f"{name}: counting its examples; set steps_per_epoch to avoid it")
        count = size + sum(map(_rows, batches))
    elif count < 0:
        count = size * (steps or 1)
    return _named(first), size if is_batched else None, count


def _named(data: Any) -> dict[str, Any]:
    return batches_of.named_parts(data if isinstance(data, tuple) else (data,), batched=True)


def _rows(batch: Any) -> int:
    part = batch
    while not hasattr(part, "shape"):
        part = next(iter(part.values() if isinstance(part, Mapping) else part))
    return int(part.shape[0])


def _of_batches(
    batches: Iterable[Any], name: str, *, is_batched: bool = True, is_shuffled: bool = False
) -> Examples:
    """Return batches as rows; of arrays there is one."""
    columns: list[list[np.ndarray]] = []
    structures = []
    size = 0
    for batch in batches:
        structure, arrays = _encoded_all(batch, name)
        structures.append(structure)
        columns = columns or [[] for _ in arrays]
        if structure != structures[0]:
            raise ConfigError(f"{name} has batches of several structures; use one")
        for column, array in zip(columns, arrays, strict=True):
            column.append(array)
        size += sum(array.nbytes for array in arrays)
        if is_batched and size > MAX_BYTES:
            raise ConfigError(
                f"{name} has more than {format_bytes(MAX_BYTES)}, which every process would hold "
                f"in memory; {_FUNCTION_FIX}, and it is read as a stream; if it has no end, "
                f"{_STEPS_FIX}"
            )
    if not structures:
        raise ConfigError(f"{name} has no batch; a generator that was read once is empty")
    sizes = [len(array) for array in columns[0]]
    try:
        rows = [batches_of.joined(column) for column in columns]
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not is_batched:
        return Examples(structures[0], rows)
    is_alike = len(set(sizes[:-1])) <= 1  # so that each starts at a multiple of the size
    return Examples(structures[0], rows, sizes[0], sizes[0] if is_shuffled and is_alike else 0)


def _of_dataset(dataset: Any, name: str, steps: int | None) -> Examples:
    """Read a dataset to its end; of one that repeats itself one pass."""
    elements = _elements()
    stages = list(elements.stages(dataset))
    _check_repeatable(dataset, stages, name)
    is_batched, made_by = elements.may_be_batches(dataset), elements.batching(dataset)
    if int(dataset.cardinality()) == -1:
        dataset = _finite(dataset, name, steps)
    is_shuffled = any("Shuffle" in _kind(stage) for stage in stages)
    examples = _of_batches(
        dataset if is_batched else dataset.batch(1024), name, is_shuffled=is_shuffled
    )
    size = examples.batch_size if is_batched else None
    keeps_rows = made_by is not None and (not made_by.is_mapped or size == made_by.size)
    if not is_batched or (is_shuffled and keeps_rows):
        examples = replace(examples, batch_size=size, unit=1)
    if is_shuffled and examples.unit:
        examples = replace(examples, columns=_in_one_order(examples.columns, examples.unit))
    return examples


def _finite(dataset: Any, name: str, steps: int | None) -> Any:
    """Return one pass of a dataset that repeats another without an end; else so many steps."""
    between, stage = "", dataset
    while "Repeat" not in _kind(stage) and len(stage._inputs()) == 1:
        between += f" {_kind(stage)}"
        (stage,) = stage._inputs()
    if "Repeat" in _kind(stage):
        (inner,) = stage._inputs()
        count, made_by = int(inner.cardinality()), _elements().batching(dataset)
        is_plain = made_by is not None and not made_by.is_mapped and "Padded" not in between
        if count > 0 and "Shuffle" not in between:
            if "Batch" not in between:
                return dataset.take(count)
            if is_plain:
                return made_by.source.take(count).batch(made_by.size)
        elif count > 0 and "Map" not in between and ("Batch" not in between or is_plain):
            return inner.batch(made_by.size) if "Batch" in between else inner
    if steps is None:
        raise ConfigError(f"{name} is a tf.data.Dataset without an end; {_STEPS_FIX}")
    return dataset.take(steps)


def _check_repeatable(dataset: Any, stages: list[Any], name: str) -> None:
    """Refuse a dataset of which one pass is not what each pass gives."""
    specs = sys.modules["tensorflow"].nest.flatten(dataset.element_spec)
    if others := {type(spec).__name__ for spec in specs} - {"TensorSpec"}:
        raise ConfigError(
            f"{name} is a tf.data.Dataset with a {min(others)}; make it of dense tensors in a map"
        )
    functions = (function for stage in stages for function in stage._functions())
    operations = set().union(*map(_elements().operations, functions))
    if drawing := sorted(operation for operation in operations if "Random" in operation):
        raise ConfigError(
            f"{name} is a tf.data.Dataset that draws random numbers ({drawing[0]}): every epoch "
            f"would get the same; draw in layers of the model, or {_FUNCTION_FIX}"
        )


def _elements() -> Any:
    """Return the module for the elements of a tf.data.Dataset; it imports TensorFlow."""
    return import_module("trainer.datasets.splits.elements")


def _kind(stage: Any) -> str:
    return type(stage).__name__


def _in_one_order(columns: list[Any], unit: int) -> list[Any]:
    """Return rows, `unit` together, in an order of their content: each pass shuffles otherwise."""
    starts = range(0, len(columns[0]), unit)

    def digest(start: int) -> bytes:
        rows = (batches_of.content(column[start : start + unit]) for column in columns)
        return hashlib.sha256(b"".join(rows)).digest()

    order = np.concatenate([np.arange(start, start + unit) for start in sorted(starts, key=digest)])
    order = order[order < len(columns[0])]
    return [column[order] for column in columns]


def _encoded_all(data: Any, name: str) -> tuple[list[Any], list[np.ndarray]]:
    """Return a structure for each of x, y and sample_weight, and the arrays that it numbers."""
    parts = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= 3:
        raise ConfigError(
            f"{name} has {len(parts)} values, it must be (x, y), (x, y, sample_weight) or x; "
            "several inputs are a dict or a list"
        )
    arrays: list[np.ndarray] = []

    def number(value: Any, title: str) -> int | None:
        if value is None:
            return None
        arrays.append(batches_of.as_column(value, title, f"{_FUNCTION_FIX} as arrays or batches"))
        return len(arrays) - 1

    try:
        structure = [
            batches_of.map_arrays(number, part, f"{name}[{place}]")
            for place, part in enumerate(parts)
        ]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return structure, arrays


class KeptData:
    """Examples in a folder.

    Attributes:
        path: the folder, which `trainer.datasets.fit_data.kept_arrays` reads.
        first: the first example by name, nests of arrays [1, ...].
    """

    def __init__(self, data: Any, name: str, folder: Path, steps: int | None = None) -> None:
        """Keep examples below a folder; see `read`.

        Raises:
            ConfigError: they are nothing that can be kept.
        """
        examples = read(data, name, steps)
        self.batch_size = examples.batch_size
        self.unit = examples.unit

        def first(number: int | None, title: str) -> Any:
            row = None if number is None else examples.columns[number][:1]
            return getattr(row, "array", row)  # of padded rows

        parts = (batches_of.map_arrays(first, part, name) for part in examples.structure)
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
    kind = "str" if column.size and all(isinstance(text, str) for text in column.flat) else "bytes"
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
    """Write a folder, unless another process writes the same at the same time."""
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
