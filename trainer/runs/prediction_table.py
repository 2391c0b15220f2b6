"""The table of mode=predict: its file, and the record of its inputs, to resume after a kill."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.config.schema import Experiment
from trainer.errors import ConfigError, DamagedError
from trainer.files import read_bytes, read_json
from trainer.optional_packages import missing
from trainer.protocols import Dataset, DatasetDefaults, HasFiles, Split, with_defaults

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
_INPUT_KEYS = ("model", "task", "dataset", "precision", "jit")
"""Keys of the experiment that a prediction depends on, given a checkpoint."""


@dataclass(frozen=True)
class PredictionTable:
    """A table of predictions.

    Attributes:
        inputs: everything its content follows from, except the batch size of a replica.
    """

    path: Path
    inputs: dict[str, Any]

    @property
    def record(self) -> Path:
        """The file next to the table that records its inputs."""
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def rows(self) -> Path:
        """The file of the rows so far, until the table is finished."""
        return self.path.with_name(f"{self.path.name}.rows")

    def recorded(self) -> dict[str, Any]:
        """Return the content of the record, empty if it is that of another table."""
        try:
            content = read_json(self.record)
        except (FileNotFoundError, DamagedError):
            return {}
        return content if content.get("inputs") == self.inputs else {}

    def is_finished(self) -> bool:
        """Return whether the table exists; raise a ConfigError if another file has its name."""
        if self.path.exists() and not self.recorded():
            raise ConfigError(
                f"{self.path} is there, and is not what this command makes; remove it, "
                "or add predict.path=<another file>"
            )
        return self.path.exists()


def check(experiment: Experiment) -> None:
    """Raise a ConfigError if a package or an image that mode=predict needs is missing."""
    options = experiment.predict
    if options.format == "parquet" and (
        problem := missing("pyarrow", "steadfast-trainer[parquet]")
    ):
        raise ConfigError(f"predict.format (parquet) {problem}, or use csv")
    if options.images is not None:
        find_images(options.images)
    if options.images is not None and options.prompts is not None:
        raise ConfigError(
            f"predict.images ({options.images}) and predict.prompts ({options.prompts}) are two "
            "things to predict; leave one of them out"
        )


def requested_table(experiment: Experiment, run_dir: Path, step: int) -> PredictionTable:
    """Return the table that a command requests."""
    options = experiment.predict
    marker = read_bytes(run_dir / "checkpoints" / f"ckpt-{step}.json")
    inputs = {
        "run": run_dir.name,
        "step": step,
        "checkpoint": hashlib.sha256(marker).hexdigest(),
        "format": options.format,
    }
    inputs |= {key: getattr(experiment, key) for key in _INPUT_KEYS}
    inputs["sampling"] = asdict(options.sampling)
    if options.prompts is not None:
        file = Path(options.prompts).expanduser().resolve()
        name = file.stem
        inputs |= {"prompts": str(file), "files": hashlib.sha256(file.read_bytes()).hexdigest()}
    elif options.images is None:
        name = options.split
        inputs["split"] = name
    else:
        folder = Path(options.images).expanduser().resolve()
        name = folder.name
        inputs |= {"images": str(folder), "files": _digest(folder)}
    path = (
        Path(options.path).expanduser()
        if options.path
        else run_dir / "predictions" / f"{name}-{step}.{options.format}"
    )
    return PredictionTable(path, json.loads(json.dumps(inputs)))


def predicted_split(experiment: Experiment, dataset: Dataset) -> Split:
    """Return the split to predict: the requested one in mode=predict, else the one that selects.

    Raises:
        ConfigError: image files are requested, and the dataset cannot read images.
    """
    if experiment.mode != "predict":
        validation = with_defaults(dataset, DatasetDefaults).validation
        return dataset.test if validation is None or not experiment.trains else validation
    if (folder := experiment.predict.images) is None:
        name = experiment.predict.split
        split: Split | None = getattr(dataset, name, None)
        if split is None or not split.num_examples:
            raise ConfigError(f"predict.split ({name}) has no examples; choose another split")
        if not isinstance(split, Split):
            raise ConfigError(
                f"predict.split ({name}) is a stream without an end; use predict.split=test"
            )
        return split
    if not isinstance(dataset, HasFiles):
        name = experiment.dataset["_target_"]
        raise ConfigError(
            f"predict.images ({folder}) needs a dataset of images, one with a method `files`; "
            f"{name} makes none"
        )
    return dataset.files(find_images(folder))


def find_images(folder: str) -> list[Path]:
    """Return the images below a folder by `image_id`, no hidden ones, or raise a ConfigError."""
    root = Path(folder).expanduser()
    paths = [
        Path(directory, name)
        for directory, _, names in os.walk(root)
        for name in names
        if name.lower().endswith(SUFFIXES)
        and not any(part.startswith(".") for part in Path(directory, name).relative_to(root).parts)
    ]
    if not paths:
        raise ConfigError(
            f"predict.images ({folder}): no image in it; "
            f"there must be files that end in {', '.join(SUFFIXES)}"
        )
    return sorted(paths, key=lambda path: image_id(path, folder))


def image_id(path: Path, folder: str) -> str:
    """Return the id of an image in the table: its path relative to the folder."""
    relative = path.relative_to(Path(folder).expanduser()).as_posix()
    return os.fsencode(relative).decode(errors="replace")


def _digest(folder: Path) -> str:
    """Return a hash of the names, sizes and times of the images in a folder."""
    digest = hashlib.sha256()
    for path in find_images(str(folder)):
        status = path.stat()
        line = f"{image_id(path, str(folder))}\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(line.encode())
    return digest.hexdigest()
