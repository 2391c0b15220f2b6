"""Data sets of the library Hugging Face Datasets, from the disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from trainer.annotations import Free, Gt, Lt, Structural, takes
from trainer.datasets.images.images import ImageDataset, ImageOptions
from trainer.datasets.indexed import Sources, from_sources
from trainer.datasets.records.fields import FEATURES, LABELS, Fields
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.datasets.splits.paths import find_files, find_splits
from trainer.optional_packages import import_extra
from trainer.text import first_line

_EXTRA = "huggingface"
_SUFFIXES = (".arrow", ".parquet")
_CHOICE = "dataset=huggingface"


@takes(ImageOptions)
def huggingface(
    options: ImageOptions,
    *,
    path: Annotated[str | None, Free(names_run=True)] = None,
    test_path: Annotated[str | None, Free(names_run=True)] = None,
    train: str = "train",
    test: str = "test",
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.1,
    fields: Annotated[Fields | None, Structural()] = None,
) -> ImageDataset | ArrayDataset:
    """A data set as `save_to_disk` writes it, or Arrow or Parquet files.

    Arrow files are mapped into memory; Parquet files are read into it, for their rows cannot be
    read one by one. Images stay encoded and are decoded in the graph.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file cannot be read, or the package datasets is missing.
    """
    fields = fields or Fields()
    found = _splits(path, test_path, train, test)
    label = found["train"].features.get(_column(found["train"], fields.label, LABELS))
    return from_sources(
        Sources(
            **{name: _prepared(data, fields) for name, data in found.items()},
            test_fraction=test_fraction,
            names={"train": f"{path} ({train})", "test": f"{test_path or path} ({test})"},
            class_names=getattr(label, "names", None),
            files=_files(path, test_path),
        ),
        fields,
        options,
    )


def _splits(path: str | None, test_path: str | None, train: str, test: str) -> dict[str, Any]:
    loaded = _load(path, "path", divides=test_path is None)
    found = {"train": _pick(loaded, train, "train")}
    if test_path is not None:
        found["test"] = _pick(_load(test_path, "test_path"), test, "test")
    elif isinstance(loaded, dict):
        if "validation" in loaded and "validation" not in (train, test):
            found["validation"] = loaded["validation"]
        if test in loaded or "validation" not in found:
            found["test"] = _pick(loaded, test, "test")
    return found


def _load(path: str | None, key: str, *, divides: bool = False) -> Any:
    """Return the Dataset that a path names, or a mapping of splits.

    The files of a path are those of several splits only if that `divides`.
    """
    library = import_extra("datasets", _EXTRA, _CHOICE)
    root = Path(str(path)).expanduser()
    if any((root / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
        try:
            return library.load_from_disk(str(root))
        except Exception as error:  # any exception of Arrow
            raise ValueError(f"{key} ({root}) cannot be read: {first_line(error)}") from error
    list_files = partial(find_files, suffixes=_SUFFIXES)

    def joined(files: list[Path]) -> Any:
        return library.concatenate_datasets([_read_file(library, file) for file in files])

    if not divides:
        return joined(list_files(path, key))
    splits = find_splits(path, None, list_files)
    loaded = {name: joined(files) for name, (_, files) in splits.present.items()}
    return loaded["train"] if splits.is_whole else loaded


def _files(*paths: str | None) -> list[Path]:
    named = [Path(path).expanduser() for path in paths if path is not None]
    return [
        file
        for path in named
        for file in ([path] if path.is_dir() else find_files(str(path), suffixes=_SUFFIXES))
    ]


def _read_file(library: Any, file: Path) -> Any:
    try:
        if file.suffix == ".parquet":
            parquet = import_extra("pyarrow.parquet", _EXTRA, _CHOICE)
            return library.Dataset(library.table.InMemoryTable(parquet.read_table(file)))
        return library.Dataset.from_file(str(file))
    except Exception as error:  # any exception of Arrow
        raise ValueError(
            f"{file} cannot be read: {first_line(error)}; was it cut short?"
        ) from error


def _pick(loaded: Any, split: str, key: str) -> Any:
    """Return a split of a DatasetDict; a Dataset is one itself."""
    if not isinstance(loaded, dict):
        return loaded
    if split not in loaded:
        raise ValueError(
            f"{key} ({split}): the data set has no such split, it has {', '.join(loaded)}"
        )
    return loaded[split]


def _prepared(data: Any, fields: Fields) -> Any:
    """Keep what is used: two columns, images as bytes, numbers as NumPy arrays."""
    library = import_extra("datasets", _EXTRA, _CHOICE)
    names = [_column(data, fields.features, FEATURES), _column(data, fields.label, LABELS)]
    if any(key not in (None, *data.column_names) for key in (fields.features, fields.label)):
        return data  # which is refused, with all its columns
    kept = data.select_columns([name for name in names if name]) if any(names) else data
    if names[0] and isinstance(kept.features[names[0]], library.Image):
        return kept.cast_column(names[0], library.Image(decode=False))
    return kept.with_format("numpy")


def _column(data: Any, key: str | int | None, usual: tuple[str, ...]) -> Any:
    """Return the first of the usual names that is a column, or None."""
    return key or next((name for name in usual if name in data.column_names), None)
