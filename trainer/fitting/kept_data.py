"""Keeps arrays or a `tf.data.Dataset` in a folder that is named by its content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigError
from trainer.files import writing
from trainer.text import first_line, format_bytes

_MAX_BYTES = 4 << 30
"""Of the examples of a tf.data.Dataset: every process that trains holds them in memory."""
_FUNCTION_FIX = "give fit a function that returns it"


class KeptData:
    """Examples in a folder.

    Attributes:
        path: the folder, which `trainer.datasets.fit_data.kept_arrays` reads.
        size: of its arrays, in bytes.
        batch_size: how the examples are batched already; None: they are not.
        first: the features of the first example, a nest of arrays [1, ...].
    """

    def __init__(self, data: Any, name: str, folder: Path) -> None:
        """Keep examples below a folder; `name`: theirs in messages.

        Raises:
            ConfigError: they are nothing that can be kept.
        """
        self.batch_size: int | None = None
        if is_dataset(data):
            data, self.batch_size = _read(data, name)
        parts = data if isinstance(data, tuple) else (data,)
        if not 1 <= len(parts) <= 3:
            raise ConfigError(
                f"{name} has {len(parts)} values, it must be (x, y), (x, y, sample_weight) or x; "
                "several inputs are a dict or a list"
            )
        arrays: list[np.ndarray] = []
        structure = [_encoded(part, f"{name}[{place}]", arrays) for place, part in enumerate(parts)]
        text = json.dumps(structure)
        self.first = _first(structure[0], arrays)
        self.size = sum(array.nbytes for array in arrays)
        self.path = folder / f"data-{_digest(text, arrays)}"
        if not self.path.exists():
            _write(self.path, text, arrays)

    def __str__(self) -> str:
        return f"{format_bytes(self.size)} in {self.path}"


def is_dataset(value: Any) -> bool:
    """Return whether a value is a `tf.data.Dataset`."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.data.Dataset)


def _encoded(value: Any, name: str, arrays: list[np.ndarray]) -> Any:
    """Return a nest with the numbers of its arrays in place of them; append these to `arrays`."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {str(key): _encoded(item, f"{name}[{key!r}]", arrays) for key, item in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and any(map(_is_array, value))):
        return [_encoded(item, f"{name}[{index}]", arrays) for index, item in enumerate(value)]
    arrays.append(_array(value, name))
    return len(arrays) - 1


def _first(structure: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(structure, dict):
        return {key: _first(item, arrays) for key, item in structure.items()}
    if isinstance(structure, list):
        return [_first(item, arrays) for item in structure]
    return None if structure is None else arrays[structure][:1]


def _is_array(value: Any) -> bool:
    return isinstance(value, Mapping) or bool(getattr(value, "shape", ()))


def _array(value: Any, name: str) -> np.ndarray:
    """Return an array of numbers or texts; floating-point ones are float32, as in `fit`."""
    if not hasattr(value, "__array__") and not isinstance(value, list):
        raise ConfigError(
            f"{name} is a {type(value).__name__}, which is no array; {_FUNCTION_FIX} as arrays or "
            "as a tf.data.Dataset"
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{name} is no array: {first_line(error)}; pad it to one length"
        ) from error
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32)
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], str | bytes):
        kinds = {type(item) for item in array.flat}
        if len(kinds) == 1:
            return array.astype(kinds.pop())
    if array.dtype.kind not in "biucUS":
        raise ConfigError(
            f"{name} is an array of {array.dtype}, it must be of numbers or texts; convert it; the "
            "columns of a table are dict(table)"
        )
    return np.ascontiguousarray(array)


def _digest(text: str, arrays: list[np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:12]


def _write(path: Path, text: str, arrays: list[np.ndarray]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            (temporary / "structure.json").write_text(text, encoding="utf-8")
            with (temporary / "arrays.npz").open("wb") as file:
                np.savez(file, *arrays)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _read(dataset: Any, name: str) -> tuple[Any, int | None]:
    """Read a dataset to its end; return its examples, and the size of its batches."""
    nest = sys.modules["tensorflow"].nest
    stages = list(_stages(dataset))
    specs = nest.flatten(dataset.element_spec)
    _check_readable(dataset, specs, stages, name)
    lengths = {spec.shape[0] if spec.shape.rank else "none" for spec in specs}
    is_batched = len(lengths) == 1 and "none" not in lengths
    elements = []
    size = 0
    for element in dataset if is_batched else dataset.batch(1024):
        elements.append([value.numpy() for value in nest.flatten(element)])
        size += sum(value.nbytes for value in elements[-1])
        if size > _MAX_BYTES:
            raise ConfigError(
                f"{name} is a tf.data.Dataset of more than {format_bytes(_MAX_BYTES)}, which every "
                f"process would hold in memory; {_FUNCTION_FIX}, and it is read as a stream"
            )
    if not elements:
        raise ConfigError(f"{name} is a tf.data.Dataset without an element")
    arrays = [np.concatenate(column) for column in zip(*elements, strict=True)]
    arrays = [array.astype(bytes) if array.dtype == object else array for array in arrays]
    if any("Shuffle" in type(stage).__name__ for stage in stages):
        arrays = _in_one_order(arrays)
    examples = nest.pack_sequence_as(dataset.element_spec, arrays)
    return examples, len(elements[0][0]) if is_batched else None


def _check_readable(dataset: Any, specs: list[Any], stages: list[Any], name: str) -> None:
    """Refuse a dataset that has no end, or of which one pass is not what each pass gives."""
    if int(dataset.cardinality()) == -1:
        raise ConfigError(f"{name} is a tf.data.Dataset without an end; leave out repeat()")
    if others := {type(spec).__name__ for spec in specs} - {"TensorSpec"}:
        raise ConfigError(
            f"{name} is a tf.data.Dataset with a {min(others)}; make it of dense tensors in a map"
        )
    graphs = [
        function.function.graph.as_graph_def()
        for stage in stages
        for function in stage._functions()
    ]
    operations = {
        node.op
        for graph in graphs
        for nodes in (graph.node, *(function.node_def for function in graph.library.function))
        for node in nodes
    }
    if drawing := sorted(operation for operation in operations if "Random" in operation):
        raise ConfigError(
            f"{name} is a tf.data.Dataset that draws random numbers ({drawing[0]}): every epoch "
            f"would get the same; draw in layers of the model, or {_FUNCTION_FIX}"
        )


def _stages(dataset: Any) -> Iterator[Any]:
    yield dataset
    for inner in dataset._inputs():
        yield from _stages(inner)


def _in_one_order(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return examples in an order that their content gives: each pass shuffles them otherwise."""
    parts = [[row.tobytes() for row in array] for array in arrays]
    digests = [hashlib.sha256(b"".join(row)).digest() for row in zip(*parts, strict=True)]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    return [array[order] for array in arrays]
