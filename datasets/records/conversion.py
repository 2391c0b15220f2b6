"""Writing of a dataset as TFRecord files: resumable, and verified against its source.

A shard is written under another name, flushed and then renamed, and noted with its size and
checksum in `.conversion.json`. A conversion that was killed keeps the shards that are noted. At the
end every record is read back and compared with its example. Then `dataset.json` is written, which
makes the folder a dataset.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.datasets.records.record_folder import DESCRIPTION
from trainer.datasets.records.record_source import RecordSource
from trainer.files import write_atomically
from trainer.protocols import DatasetDefaults, with_defaults

NOTES = ".conversion.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Shard:
    """A part of a split: its file, and the examples from `start` to `stop`."""

    name: str
    split: str
    start: int
    stop: int


class Conversion:
    """One conversion of a dataset to a folder."""

    def __init__(
        self,
        dataset: Any,
        folder: Path,
        *,
        shard_bytes: int,
        source: Mapping[str, Any],
        announce: Callable[[str], None],
    ) -> None:
        """Take what is converted, and how.

        Args:
            dataset: a dataset with splits `train` and `test`.
            folder: where the files go.
            shard_bytes: about how long a file shall be.
            source: the dataset's configuration; a conversion of another one is not continued.
            announce: shows a line to the user.

        Raises:
            ValueError: the dataset cannot be written so.
        """
        self._dataset = dataset
        self._folder = folder
        self._announce = announce
        max_value = with_defaults(dataset, DatasetDefaults).max_value or 1.0
        self._splits = {
            name: RecordSource(getattr(dataset, name), max_value) for name in ("train", "test")
        }
        self._key = {"source": source, "format": "tfrecord", "shard_bytes": shard_bytes}
        self._shards = self._plan(shard_bytes)

    def run(self) -> int:
        """Write what is missing, verify everything, and describe it.

        Returns:
            How many shards were kept from before.

        Raises:
            ValueError: the folder holds something else, or a record differs from its example.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        notes = self._read_notes()
        kept = 0
        for number, shard in enumerate(self._shards, start=1):
            if _is_whole(self._folder / shard.name, notes.get(shard.name)):
                kept += 1
                continue
            notes[shard.name] = self._write(shard)
            self._store(NOTES, {"key": self._key, "shards": notes})
            self._announce(
                f"wrote {shard.name}: {shard.stop:,} of {self._splits[shard.split].num_examples:,} "
                f"examples of {shard.split}, file {number} of {len(self._shards)}"
            )
        for number, shard in enumerate(self._shards, start=1):
            self._verify(shard)
            self._announce(f"verified {shard.name}, file {number} of {len(self._shards)}")
        self._store(DESCRIPTION, self._description())
        return kept

    def _plan(self, shard_bytes: int) -> list[_Shard]:
        """Divide the splits into shards; the length of the first record decides how many."""
        shards: list[_Shard] = []
        for split, source in self._splits.items():
            length = len(next(source.records(0, 1)))
            each = max(1, shard_bytes // (length + 16))
            count = -(-source.num_examples // each)
            for number in range(count):
                name = f"{split}-{number:05d}-of-{count:05d}.tfrecord"
                stop = min((number + 1) * each, source.num_examples)
                shards.append(_Shard(name, split, number * each, stop))
        return shards

    def _read_notes(self) -> dict[str, Any]:
        """Return the shards that were written before, by name."""
        file = self._folder / NOTES
        if not file.is_file():
            others = [path.name for path in self._folder.iterdir() if path.name[0] != "."]
            if others:
                raise ValueError(
                    f"out ({self._folder}) holds other files, such as {others[0]}; "
                    "choose another folder"
                )
            return {}
        notes: dict[str, Any] = json.loads(file.read_text())
        if notes["key"] != json.loads(json.dumps(self._key)):
            raise ValueError(
                f"out ({self._folder}) holds another conversion; remove it, or choose another"
            )
        return dict(notes["shards"])

    def _write(self, shard: _Shard) -> dict[str, int]:
        """Write a shard; return its note."""
        file = self._folder / shard.name
        partial = file.with_name(f".{file.name}.part")
        partial.unlink(missing_ok=True)
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for record in self._splits[shard.split].records(shard.start, shard.stop):
                writer.write(record)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, file)
        return {"bytes": file.stat().st_size, "crc32": _crc32(file)}

    def _verify(self, shard: _Shard) -> None:
        """Read a shard back."""
        file = self._folder / shard.name
        number = shard.start
        problem = ""
        try:
            expected = self._splits[shard.split].records(shard.start, shard.stop)
            stored = tf.data.TFRecordDataset(str(file))
            for read, example in zip(stored, expected, strict=True):
                if read.numpy() != example:
                    problem = f"example {number} of {shard.split} differs from its source"
                    break
                number += 1
        except ValueError:
            problem = f"it holds other than {shard.stop - shard.start} records"
        except tf.errors.OpError as error:
            problem = f"it cannot be read at example {number} of {shard.split} ({error})"
        if problem:
            raise ValueError(
                f"{file}: {problem.splitlines()[0]}; was the source changed? "
                "remove this file and convert again"
            )

    def _description(self) -> dict[str, Any]:
        """Return what `dataset.json` says, so that a dataset needs the folder's path alone."""
        dataset = self._dataset
        train = self._splits["train"]
        files = {
            split: [shard.name for shard in self._shards if shard.split == split]
            for split in self._splits
        }
        described: dict[str, Any] = {
            "format": "tfrecord",
            **files,
            "num_examples": {name: source.num_examples for name, source in self._splits.items()},
            "features": train.features,
            "label": train.label,
            "num_classes": dataset.num_classes,
        }
        if names := with_defaults(dataset, DatasetDefaults).class_names:
            described["class_names"] = list(names)
        if any(feature["kind"] == "image" for feature in train.features.values()):
            described["image_size"] = list(dataset.image_shape[:2])
            described["channels"] = dataset.image_shape[2]
        elif size := with_defaults(dataset, DatasetDefaults).image_size:
            described["image_size"] = list(size)
        return described

    def _store(self, name: str, content: Any) -> None:
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        write_atomically(self._folder / name, text)


def _is_whole(file: Path, note: Mapping[str, int] | None) -> bool:
    """Return whether a shard is as it was noted."""
    if note is None or not file.is_file() or file.stat().st_size != note["bytes"]:
        return False
    return _crc32(file) == note["crc32"]


def _crc32(file: Path) -> int:
    crc = 0
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
