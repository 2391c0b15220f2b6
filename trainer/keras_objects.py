"""Files and objects of either Keras: what a file holds, and what rebuilding an object needs.

A `.keras` file is a zip archive, an `.h5` file is HDF5. Both can declare far more than they hold,
and HDF5 can name other files. Neither is opened here. Nothing in them is run.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import h5py

WEIGHTS = "model.weights.h5"
READ_ERRORS = (
    OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, EOFError,
    MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What a file that is damaged, or not of Keras, can raise."""

_SMALL = 1 << 16
_MAX_EXPANSION = 200
"""How many times its size a file may declare. Keras does not compress."""


@dataclass(frozen=True)
class Archive:
    """A `.keras` file.

    Attributes:
        weights: what `WEIGHTS` in it holds.
    """

    version: str
    config: dict[str, Any]
    weights: h5py.File


def keras_home() -> Path:
    """Return Keras' folder, whose folders are its caches: `KERAS_HOME`, or else `~/.keras`."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()


def read_archive(path: Path) -> Archive:
    """Read a `.keras` file; raise one of `READ_ERRORS` if it is invalid, or declares too much."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        declared = sum(member.file_size for member in members)
        if problem := _size_problem("it", declared, path.stat().st_size):
            raise ValueError(problem)
        for name in (member.filename for member in members):
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                raise ValueError(f"it has a member outside itself, {name!r}")
        version = json.loads(archive.read("metadata.json"))["keras_version"]
        config = json.loads(archive.read("config.json"))
        weights = open_hdf5(io.BytesIO(archive.read(WEIGHTS)))
    return Archive(version, config, weights)


def open_hdf5(file: Path | io.BytesIO) -> h5py.File:
    """Open an HDF5 file all of whose content is in itself.

    Raises:
        Exception: one of `READ_ERRORS`: it is invalid, names other files, or declares more than it
            holds.
    """
    import h5py

    # h5py has no way for an exception out of these: what they return ends the visit.
    def link_problem(name: str, link: Any) -> str | None:
        is_outside = isinstance(link, h5py.ExternalLink)
        return f"its {name!r} is in another file, {link.filename!r}" if is_outside else None

    def problem_of(name: str, item: Any) -> str | None:
        if not isinstance(item, h5py.Dataset):
            return None
        if item.external or item.is_virtual:
            return f"its {name!r} is in other files"
        return _size_problem(f"its {name!r}", item.nbytes, item.id.get_storage_size())

    opened = h5py.File(file, "r")
    if problem := opened.visititems_links(link_problem) or opened.visititems(problem_of):
        opened.close()
        raise ValueError(problem)
    return opened


def _size_problem(what: str, declared: int, held: int) -> str | None:
    is_bomb = declared > _SMALL + _MAX_EXPANSION * held
    return f"{what} declares {declared} bytes, but holds {held}" if is_bomb else None


@dataclass(frozen=True)
class _Constructible:
    """Replaces a class whose constructor does not take what every layer is configured with."""

    kind: Any

    def from_config(self, config: Mapping[str, Any]) -> Any:
        names = inspect.signature(self.kind).parameters
        instance = self.kind.from_config({k: v for k, v in config.items() if k in names})
        if config.get("trainable") is False:
            instance.trainable = False
        return instance


def constructible(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return custom objects of which Keras makes also those without `**kwargs` in `__init__`."""
    return {
        name: _Constructible(item) if _is_narrow(item) else item for name, item in objects.items()
    }


def _is_narrow(item: Any) -> bool:
    if not isinstance(item, type) or not hasattr(item, "get_config"):
        return False
    return all(x.kind is not x.VAR_KEYWORD for x in inspect.signature(item).parameters.values())


def optimizer_options(optimizer: Any) -> dict[str, Any]:
    """Return the options of an optimizer; a schedule is itself: it may have no configuration."""
    hyper = getattr(optimizer, "_hyper", {})  # of a legacy one
    holder, name = (hyper, "learning_rate") if hyper else (vars(optimizer), "_learning_rate")
    rate = holder.get(name)
    if not callable(rate):
        return dict(optimizer.get_config())
    holder[name] = 0.0
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        holder[name] = rate


def check_precision(model: Any, path: str) -> None:
    """Raise a ValueError at a precision that the layers, which have their own, would not follow."""
    wanted = import_module("tensorflow").keras.mixed_precision.global_policy().compute_dtype
    layers = [x for x in model._flatten_layers() if x.weights and not hasattr(x, "layers")]
    dtypes = {layer.compute_dtype for layer in layers}
    if dtypes and wanted not in dtypes:
        raise ValueError(
            f"path ({path}): the model's layers compute in {', '.join(sorted(dtypes))}, as they "
            f"were saved, not in {wanted}; set precision to theirs, or save it with that of the "
            "run"
        )
