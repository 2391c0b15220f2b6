"""Weights that Keras publishes: taken from its cache, or downloaded into it and verified.

They are files of HDF5, never unpickled. No TensorFlow.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError
from trainer.files import Lock, LockedError, writing
from trainer.keras_files import keras_home

IMAGENET = "imagenet"
"""The word for the published weights in place of a file's path."""

_HOST = "https://storage.googleapis.com/"
_TIMEOUT_SECS = 10.0  # of a connection, and between two pieces of a file
_LOCK_SECS = 3600.0  # as long as another process may take to download the same file
_PIECE = 1 << 20
_HDF5 = b"\x89HDF\r\n\x1a\n"

_SIZES = {"MobileNet": (128, 160, 192, 224), "MobileNetV2": (96, 128, 160, 192, 224)}
"""Networks with a file for each of several sizes of images; other images take the last."""

_ALPHAS = (0.35, 0.5, 0.75, 1.0, 1.3, 1.4)
"""The widths of MobileNetV2 that are published."""


@dataclass(frozen=True)
class Weights:
    """A published file.

    Attributes:
        file: its name in Keras' cache.
        url: where it is published.
        checksum: MD5 or SHA-256 in hexadecimal digits; "": none is published, so only the shapes
            that it holds tell, when they are loaded.
    """

    file: str
    url: str
    checksum: str


def find(
    network: str,
    image_size: Sequence[int] | None = None,
    *,
    alpha: float = 1.0,
    with_classifier: bool = False,
) -> Weights:
    """Return the file that `tf.keras.applications` would load for a network.

    Args:
        network: its name there.
        image_size: (height, width) of its images; None: not known.
        alpha: the width of MobileNetV2.
        with_classifier: whether MobileNetV2's 1000 logits are wanted as well.

    Raises:
        ConfigError: none is published for this width.
    """
    if alpha not in _ALPHAS:
        raise ConfigError(
            f"weights ({IMAGENET}): Keras publishes no weights with alpha={alpha}; choose one of "
            f"{', '.join(map(str, _ALPHAS))}"
        )
    sizes = _SIZES.get(network, (0,))
    is_square = image_size is not None and image_size[0] == image_size[1]
    size = image_size[0] if is_square and image_size and image_size[0] in sizes else sizes[-1]
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as table:
        rows = csv.DictReader(line for line in table if not line.startswith("#"))
        row = next(row for row in rows if row["network"] == network)
    no_top = "" if with_classifier else "_no_top"
    file = row["file"].format(alpha=float(alpha), size=size, no_top=no_top)
    return Weights(file, _HOST + row["url"].format(file=file), row["checksum"])


def fetch(weights: Weights, tell: Callable[[str], None] = lambda line: None) -> Path:
    """Return the path of a file in Keras' cache, where it is downloaded to if it is missing.

    Of several processes one downloads it. A file with another checksum is replaced, as Keras does.

    Args:
        weights: the file.
        tell: is given a line when a download begins.

    Raises:
        ConfigError: it is not there, and cannot be downloaded or verified.
        StorageError: the cache cannot be written.
    """
    path = keras_home() / "models" / weights.file
    if _is_whole(path, weights.checksum):
        return path
    with writing(path, LockedError):
        lock = Lock.acquire(path.with_name(f".{path.name}.lock"), _LOCK_SECS)
    try:
        if not _is_whole(path, weights.checksum):
            tell(f"Downloading {weights.url} to {path.parent}")
            _download(weights, path)
    finally:
        lock.close()
    return path


def _is_whole(path: Path, checksum: str) -> bool:
    """Return whether a file is there, with its checksum if there is one."""
    if not path.is_file():
        return False
    algorithm = _algorithm(checksum)
    if algorithm is None:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == checksum


def _algorithm(checksum: str) -> str | None:
    return {32: "md5", 64: "sha256"}.get(len(checksum))


def _download(weights: Weights, path: Path) -> None:
    """Download a file under the lock, and put it in its place if it is whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.writelines(_pieces(weights, path))
            if problem := _problem(temporary, weights.checksum):
                raise _failure(weights, path, problem)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _problem(path: Path, checksum: str) -> str | None:
    """Return why a downloaded file is not what is published; None: it seems to be."""
    if not _is_whole(path, checksum):
        return f"what it holds has another checksum than {checksum}"
    with path.open("rb") as file:
        return None if file.read(len(_HDF5)) == _HDF5 else "what it holds is no HDF5 file"


def _pieces(weights: Weights, path: Path) -> Iterator[bytes]:
    """Yield a file from the network.

    Raises:
        ConfigError: it cannot be read to its end.
    """
    try:
        with urllib.request.urlopen(weights.url, timeout=_TIMEOUT_SECS) as response:
            while piece := response.read(_PIECE):
                yield piece
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _failure(weights, path, f"it cannot be downloaded ({reason})") from error


def _failure(weights: Weights, path: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"weights ({IMAGENET}) is not in Keras' cache, and {problem}: get {weights.url} on a "
        f"machine that can, and put it here as {path}"
    )
