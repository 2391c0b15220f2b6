"""Which table mode=predict makes, and of what: the same command finds what it has begun, and takes nothing else for it. No TensorFlow."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.protocols import Dataset, HasFiles, Split
from trainer.schema import Experiment

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
_SEEN = ("model", "task", "dataset", "precision", "jit")
"""Keys of the experiment that a prediction depends on, given a checkpoint."""


@dataclass(frozen=True)
class Table:
    """A table of predictions.

    Attributes:
        path: its file; there when it is finished.
        made_of: all that its content follows from, but for the batch size of a replica.
    """

    path: Path
    made_of: dict[str, Any]

    @property
    def record(self) -> Path:
        """The file beside the table that says what it is made of."""
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def rows(self) -> Path:
        """The file of the rows so far, until the table is finished."""
        return self.path.with_name(f"{self.path.name}.rows")

    def recorded(self) -> dict[str, Any]:
        """Gives what stands in the record; nothing if that is of another table."""
        try:
            found = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.get("made_of") == self.made_of else {}

    def is_finished(self) -> bool:
        """Whether the table is there.

        Raises:
            ConfigError: something else is.
        """
        if self.path.exists() and not self.recorded():
            raise ConfigError(f"{self.path} is there, and is not what this command makes; remove it, or add predict.path=<another file>")
        return self.path.exists()


def check(experiment: Experiment) -> None:
    """Checks what mode=predict needs, before anything is touched.

    Raises:
        ConfigError: something is missing.
    """
    options = experiment.predict
    if options.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError('predict.format (parquet) needs pyarrow, which is missing; pip install "steadfast[parquet]", or leave it at csv')
    if options.images is not None:
        images_in(options.images)


def table_of(experiment: Experiment, run_dir: Path, step: int) -> Table:
    """Gives the table that is meant.

    Args:
        experiment: the effective configuration.
        run_dir: the run directory.
        step: the step of the checkpoint.
    """
    options = experiment.predict
    marker = (run_dir / "checkpoints" / f"ckpt-{step}.json").read_bytes()
    made_of = {"run": run_dir.name, "step": step, "checkpoint": hashlib.sha256(marker).hexdigest(), "format": options.format}
    made_of |= {key: getattr(experiment, key) for key in _SEEN}
    if options.images is None:
        name = options.split
        made_of["split"] = name
    else:
        folder = Path(options.images).expanduser().resolve()
        name = folder.name
        made_of |= {"images": str(folder), "files": _digest(folder)}
    path = Path(options.path).expanduser() if options.path else run_dir / "predictions" / f"{name}-{step}.{options.format}"
    return Table(path, json.loads(json.dumps(made_of)))


def split_of(experiment: Experiment, dataset: Dataset) -> Split:
    """Gives the split that is predicted: in mode=predict the one that is asked for, else that which is evaluated.

    Raises:
        ConfigError: image files are asked for, and the dataset is not one of images.
    """
    if experiment.mode != "predict":
        return dataset.test
    if (folder := experiment.predict.images) is None:
        split: Split = getattr(dataset, experiment.predict.split)
        return split
    if not isinstance(dataset, HasFiles):
        name = experiment.dataset["_target_"]
        raise ConfigError(f"predict.images ({folder}) needs a dataset of images, one with a method `files`; {name} makes none")
    return dataset.files(images_in(folder))


def images_in(folder: str) -> list[Path]:
    """Gives the image files below a folder, sorted by `name_of`; hidden ones are left alone.

    Raises:
        ConfigError: there are none.
    """
    root = Path(folder).expanduser()
    found = [
        Path(place, name)
        for place, folders, names in os.walk(root)
        for name in names
        if name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in Path(place, name).relative_to(root).parts)
    ]
    if not found:
        raise ConfigError(f"predict.images ({folder}): no image in it; there must be files that end in {', '.join(SUFFIXES)}")
    return sorted(found, key=lambda path: name_of(path, folder))


def name_of(path: Path, folder: str) -> str:
    """Gives the path of an image relative to its folder: its id in the table."""
    return os.fsencode(path.relative_to(Path(folder).expanduser()).as_posix()).decode(errors="replace")


def _digest(folder: Path) -> str:
    """Tells a folder's images from those that are there at another time."""
    digest = hashlib.sha256()
    for path in images_in(str(folder)):
        about = path.stat()
        digest.update(f"{name_of(path, str(folder))}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return digest.hexdigest()
