"""What has changed in options since runs were recorded: defaults, names, and paths of targets.

`config.yaml` has the number of rows that were known when it was written; the later ones are applied
when it is read. The hash in a run's name is computed as of before the first row: a row renames no
run, unless its configuration is another one now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class NewDefault:
    """An option has another default.

    Attributes:
        target: whose option it is, by its path at that time; None: the schema's.
        option: its name, or its dotted key in the schema.
        former: its default before.
    """

    target: str | None
    option: str
    former: Any


@dataclass(frozen=True)
class NewPath:
    """A target has another dotted path, and is otherwise the same.

    Attributes:
        former: its `_target_` before.
        now: its `_target_` from then on.
    """

    former: str
    now: str


@dataclass(frozen=True)
class NewName:
    """An option of a target has another name.

    Attributes:
        target: whose option it is, by its path at that time.
        former: its name before.
        now: its name from then on.
    """

    target: str
    former: str
    now: str


Row: TypeAlias = NewDefault | NewPath | NewName

_WITH_NORMALIZE = (
    "array_record.array_record", "cifar10.cifar10", "colored_digits.colored_digits",
    "digits.digits", "huggingface.huggingface", "image_folder.image_folder",
    "image_masks.image_masks", "indexed.indexed", "mnist.mnist", "npy.npy", "shapes.shapes",
    "synthetic.synthetic", "tfds.tfds", "tfrecord.tfrecord",
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    NewPath("trainer.buffers.queue.Queue", "trainer.reinforcement.buffers.queue.Queue"),
    NewPath("trainer.buffers.replay.Replay", "trainer.reinforcement.buffers.replay.Replay"),
    NewPath("trainer.environments.catch.Catch", "trainer.reinforcement.environments.catch.Catch"),
    NewPath(
        "trainer.environments.registered.registered",
        "trainer.reinforcement.environments.registered.registered",
    ),
    NewPath("trainer.tasks.d4pg.D4PG", "trainer.reinforcement.tasks.d4pg.D4PG"),
    NewPath("trainer.tasks.impala.Impala", "trainer.reinforcement.tasks.impala.Impala"),
    NewPath(
        "trainer.datasets.augment.Augmentation", "trainer.datasets.operations.augment.Augmentation"
    ),
    NewPath(
        "trainer.datasets.coloured_digits.coloured_digits",
        "trainer.datasets.colored_digits.colored_digits",
    ),
    NewPath("trainer.datasets.fields.Fields", "trainer.datasets.records.fields.Fields"),
    NewPath(
        "trainer.datasets.normalise.Normalisation",
        "trainer.datasets.images.normalization.Normalization",
    ),
    *(NewName(f"trainer.datasets.{name}", "normalise", "normalize") for name in _WITH_NORMALIZE),
    NewName(
        "trainer.datasets.image_folder.image_folder", "max_corrupt_files", "max_corrupt_records"
    ),
    NewName("trainer.datasets.image_masks.image_masks", "max_corrupt_files", "max_corrupt_records"),
    NewName("trainer.tasks.contrastive.Contrastive", "neighbours", "neighbors"),
    NewDefault("trainer.datasets.stream.stream", "label_kind", "class"),
)
"""In the order of time. Append a row in the commit that changes a default, renames an option of a
`_target_` or moves it; rows are never removed or reordered."""


def migrated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config.yaml says, as it is written today."""
    values: Any = dict(config)
    for row in ROWS[values.get("migrations", 0) :]:
        if isinstance(row, NewDefault) and row.target is None:
            *sections, key = row.option.split(".")
            section = values
            for name in sections:
                section = section.setdefault(name, {})
            section.setdefault(key, row.former)
        else:
            values = _migrated(values, row)
    return {name: value for name, value in values.items() if name != "migrations"}


def _migrated(node: Any, row: Row) -> Any:
    """Apply a row to every target in a node."""
    if isinstance(node, list):
        return [_migrated(item, row) for item in node]
    if not isinstance(node, Mapping):
        return node
    values = {name: _migrated(value, row) for name, value in node.items()}
    target = values.get("_target_")
    if isinstance(row, NewPath):
        return {**values, "_target_": row.now} if target == row.former else values
    if isinstance(row, NewName):
        names = {row.former: row.now} if target == row.target else {}
        return {names.get(name, name): value for name, value in values.items()}
    return {row.option: row.former, **values} if target == row.target else values


def current_path(target: Any) -> Any:
    """Return the path that a target has today."""
    for row in ROWS:
        if isinstance(row, NewPath) and row.former == target:
            target = row.now
    return target


def first_path(target: Any) -> Any:
    """Return the path that a target had before the first row."""
    for row in reversed(ROWS):
        if isinstance(row, NewPath) and row.now == target:
            target = row.former
    return target


def first_keys(values: Mapping[str, Any]) -> dict[str, str]:
    """Return for each dotted key of a configuration the key that it had before the first row."""
    keys = {key: key for key in values}
    targets = {key: value for key, value in values.items() if key.rpartition(".")[2] == "_target_"}
    for row in reversed(ROWS):
        if isinstance(row, NewPath):
            targets = {
                key: row.former if target == row.now else target for key, target in targets.items()
            }
        elif isinstance(row, NewName):
            sections = [
                keys[key].removesuffix("_target_")
                for key, target in targets.items()
                if target == row.target
            ]
            for section in sections:
                now = f"{section}{row.now}"
                keys = {
                    key: f"{section}{row.former}{first.removeprefix(now)}"
                    if f"{first}.".startswith(f"{now}.")
                    else first
                    for key, first in keys.items()
                }
    return keys


def first_default(target: str | None, option: str, default: Any) -> Any:
    """Return the default that an option had before the first row.

    Args:
        target: whose option it is, by its path of today; None: the schema's.
        option: its name, or its dotted key in the schema.
        default: its default of today.
    """
    for row in reversed(ROWS):
        if isinstance(row, NewPath):
            target = row.former if row.now == target else target
        elif isinstance(row, NewName):
            option = row.former if (row.target, row.now) == (target, option) else option
        elif (row.target, row.option) == (target, option):
            default = row.former
    return default
