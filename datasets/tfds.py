"""Data sets of TensorFlow Datasets that have been prepared as ArrayRecord files; offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from trainer.annotations import Exists, Free, Structural, takes
from trainer.datasets.images.images import ImageDataset, ImageOptions
from trainer.datasets.indexed import Sources, from_sources
from trainer.datasets.records.fields import LABELS, Fields
from trainer.datasets.splits.arrays import ArrayDataset
from trainer.optional_packages import import_extra
from trainer.text import first_line

_EXTRA = "tfds"


@takes(ImageOptions)
def tfds(
    options: ImageOptions,
    *,
    path: Annotated[str | None, Exists("directory"), Free(names_run=True)] = None,
    train: str = "train",
    test: str = "test",
    fields: Annotated[Fields | None, Structural()] = None,
) -> ImageDataset | ArrayDataset:
    """A prepared data set of TensorFlow Datasets.

    Images stay encoded and are decoded in the graph.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it holds no such data set, or a package is missing.
    """
    fields = fields or Fields()
    library, builder = _builder(path)
    root = str(path)
    features = builder.info.features
    name = fields.label or next((key for key in LABELS if key in features), None)
    label = dict(features.items()).get(name)
    return from_sources(
        Sources(
            _source(library, builder, train),
            _source(library, builder, test),
            names={"train": f"{root} ({train})", "test": f"{root} ({test})"},
            num_classes=getattr(label, "num_classes", None),
            class_names=_names(label),
            files=[Path(root).expanduser()],
        ),
        fields,
        options,
    )


def _builder(path: str | None) -> tuple[Any, Any]:
    """Return the library, and what reads the data set in a folder."""
    if path is None:
        raise ValueError("path (null) must name the folder of a prepared data set and version")
    root = Path(path).expanduser()
    library = import_extra("tensorflow_datasets", _EXTRA, "dataset=tfds")
    import_extra("array_record", _EXTRA, "dataset=tfds")
    if not (root / "dataset_info.json").is_file():
        raise FileNotFoundError(
            f"path ({root}) has no dataset_info.json; give the folder of one version of a data set"
        )
    try:
        builder = library.builder_from_directory(str(root))
    except Exception as error:  # any exception of the library
        raise ValueError(f"path ({root}) cannot be read: {first_line(error)}") from error
    if (form := builder.info.file_format.value) != "array_record":
        raise ValueError(
            f"path ({root}) is stored as {form}, which cannot be read by index; prepare it with "
            "file_format='array_record'"
        )
    return library, builder


def _source(library: Any, builder: Any, split: str) -> Any:
    skip = {
        name: library.decode.SkipDecoding()
        for name, feature in builder.info.features.items()
        if isinstance(feature, library.features.Image)
    }
    try:
        return builder.as_data_source(split=split, decoders=skip or None)
    except Exception as error:  # any exception of the library
        raise ValueError(f"the split {split} cannot be opened: {first_line(error)}") from error


def _names(label: Any) -> list[str] | None:
    """Return the names of the classes, unless they are their numbers."""
    names = getattr(label, "names", None)
    if names is None or list(names) == [str(number) for number in range(len(names))]:
        return None
    return list(names)
