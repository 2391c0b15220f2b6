"""Reading and decoding of examples: `python -m benchmarks.input [--records N] [--rounds N]`.

JPEG images of 500 x 375 pixels, made here, to 224 x 224, in batches of 64 in random order: bytes in
memory (the limit of decoding), files, records by index, and a conventional tf.data pipeline. Each
round measures all of them, one after the other; on a busy machine compare processor time.
`--cores 0` measures on one core. Other modes:

    --resume   the time to the first batch at position 10 and at 10 million, of ten million records
    --memory   the memory of two passes over 100,000 records of 100 kB (a sparse file)
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer.datasets.images.framing import Framing
from trainer.datasets.images.image_files import CorruptExamples, FileSplit
from trainer.datasets.operations.augment import Augmentation
from trainer.datasets.tfrecord import (
    Features,
    RecordIndex,
    TFRecordSplit,
    read_features,
    tfrecord,
)
from trainer.engine.graph.input.feed import Pipeline, SampleOrder, Source

BATCH = 64
SIZE = (224, 224)
POOL = 200  # different images
CLASSES = 10


def picture(number: int) -> bytes:
    """Return a JPEG of 500 x 375 pixels, smooth with noise, of about 90 kB."""
    random = np.random.default_rng(number)
    down, across = np.mgrid[0:375, 0:500]
    waves = 60 * np.sin(across / (5 + number % 17)) + 40 * np.cos(down / (7 + number % 13))
    image = 128 + waves[..., None] + random.normal(0, 18, (375, 500, 3))
    return bytes(tf.io.encode_jpeg(image.clip(0, 255).astype(np.uint8), quality=90).numpy())


def example(image: bytes, label: int) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(record.SerializeToString())


def make(folder: Path, num_records: int) -> list[Path]:
    """Write the records, in four files, and as files of images; return the latter."""
    pool = [picture(number) for number in range(POOL)]
    paths = []
    for shard in range(4):
        with tf.io.TFRecordWriter(str(folder / f"train-{shard:05d}-of-00004")) as writer:
            for number in range(shard, num_records, 4):
                writer.write(example(pool[number % POOL], number % CLASSES))
                paths.append(folder / "images" / f"{number}.jpg")
                paths[-1].parent.mkdir(exist_ok=True)
                paths[-1].write_bytes(pool[number % POOL])
    return paths


class Limit:
    """Bytes in memory: nothing is read, only decoded."""

    in_memory = False

    def __init__(self, num_examples: int, framing: Framing) -> None:
        self.num_examples = num_examples
        self.augments = framing.min_area > 0
        self._framing = framing
        self._pool = tf.constant([picture(number) for number in range(POOL)])

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        contents = tf.gather(self._pool, indices % POOL)
        parts = (contents,) if draws is None else (contents, draws)
        images = tf.data.Dataset.from_tensor_slices(parts).map(
            self._decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        features = images.batch(BATCH, drop_remainder=True).get_single_element()
        return {"features": features, "label": indices % CLASSES}

    def _decode(self, content: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
        image = tf.io.decode_jpeg(content, channels=3)
        box = None if draws is None else draws[4:]
        return tf.saturate_cast(tf.round(self._framing.apply(image, SIZE, box)), tf.uint8)


def conventional(folder: Path) -> Iterator[object]:
    """Return what tutorials write: interleave, shuffle, parse, decode, batch, prefetch."""
    specification = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, specification)
        image = tf.image.resize(tf.io.decode_jpeg(parsed["image"], channels=3), SIZE)
        return tf.saturate_cast(tf.round(image), tf.uint8), parsed["label"]

    files = tf.data.Dataset.list_files(str(folder / "train-*"), shuffle=True)
    records = files.interleave(
        tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    examples = records.shuffle(2000).repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(examples.batch(BATCH).prefetch(tf.data.AUTOTUNE))


def ours(split: object, num_draws: int = 0) -> Iterator[object]:
    """Return the engine's own pipeline over a split, in the random order of training."""
    order = SampleOrder(split.num_examples, 0)
    source = Source(split, BATCH, 1, order, num_draws)
    return iter(Pipeline(source, tf.distribute.get_strategy()).open(0))


def paths(folder: Path, files: list[Path]) -> dict[str, Callable[[], Iterator[object]]]:
    """Return what is measured: name -> opens the input."""
    framing = Framing()
    features = {"image": "image", "label": "int"}
    options = {"features": features, "num_classes": CLASSES, "image_size": list(SIZE)}
    random = Augmentation(min_area=0.08)
    records = tfrecord(path=str(folder), **options)
    cut = tfrecord(path=str(folder), augment=random, **options)
    num_examples = records.train.num_examples
    images = FileSplit(
        files, [0] * len(files), (*SIZE, 3), framing=framing, corrupt=CorruptExamples(0)
    )
    return {
        "bytes in memory: the limit": lambda: ours(Limit(num_examples, framing)),
        "tfrecord": lambda: ours(records.train),
        "image files": lambda: ours(images),
        "interleave and shuffle(2000)": lambda: conventional(folder),
        "limit, random box": lambda: ours(Limit(num_examples, Framing(min_area=0.08)), 8),
        "tfrecord, random box": lambda: ours(cut.train, 8),
    }


def measure(iterator: Iterator[object], batches: int) -> tuple[float, float]:
    """Return the processor time of an example in ms, and examples a second."""
    for _ in range(3):
        next(iterator)
    usage, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(batches):
        next(iterator)
    wall = time.perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime
    return 1e3 * cpu / (batches * BATCH), batches * BATCH / wall


def compare(num_records: int, rounds: int, batches: int) -> None:
    """Print a table of all paths, with the medians of the rounds and of their ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened = paths(folder, make(folder, num_records))
        figures: dict[str, list[tuple[float, float]]] = {path: [] for path in opened}
        for _ in range(rounds):
            for path, begin in opened.items():
                figures[path].append(measure(begin(), batches))
    print(f"{len(os.sched_getaffinity(0))} cores, {num_records} records, {rounds} rounds")
    print("| path | cpu ms | examples/s | cpu, of the limit |\n| --- | ---: | ---: | ---: |")
    limit = ""
    for path, values in figures.items():
        limit = path if "limit" in path else limit
        ratio = statistics.median(
            value / base for (value, _), (base, _) in zip(values, figures[limit], strict=True)
        )
        cpu, rate = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"| {path} | {cpu:.2f} | {rate:.0f} | {ratio:.3f} |")


def sparse_record_file(file: Path, num_records: int, num_bytes: int) -> np.ndarray:
    """Write records of zeros without writing the zeros; return their offsets."""
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(bytes(num_bytes))
    record = file.read_bytes()
    offsets = np.arange(num_records) * (num_bytes + 16)
    with file.open("wb") as opened:
        for offset in offsets.tolist():
            opened.seek(offset)
            opened.write(record[:12])
            opened.seek(offset + 12 + num_bytes)
            opened.write(record[-4:])
    return offsets


class Lengths(Features):
    """Has the length of a record as its features, for records that are no examples."""

    def parse(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        lengths = tf.strings.length(records)
        return lengths, tf.zeros_like(lengths, tf.int64), lengths > 0


def record_split(file: Path, offsets: np.ndarray) -> TFRecordSplit:
    features = Lengths(read_features({"x": "float", "label": "int"}), "label", 1)
    index = RecordIndex((file,), np.array([len(offsets)]), offsets)
    corrupt = CorruptExamples(0)
    return TFRecordSplit(index, features, None, framing=Framing(), corrupt=corrupt)


def memory(num_records: int) -> None:
    """Print the resident memory in two passes over large records."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "a.tfrecord"
        split = record_split(file, sparse_record_file(file, num_records, 100_000))
        iterator = ours(split)
        batches = 2 * num_records // BATCH
        for number in range(batches):
            next(iterator)
            if number % (batches // 8) == batches // 8 - 1:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                print(
                    f"epoch {2 * (number + 1) / batches:.2f}: resident "
                    f"{pages * resource.getpagesize() / 2**20:.0f} MiB",
                    flush=True,
                )


def resume(rounds: int) -> None:
    """Print how long the first batch takes at two positions of ten million records."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "a.tfrecord"
        offsets = sparse_record_file(file, 1000, 1000)
        split = record_split(file, offsets[np.arange(10_000_000) % 1000])
        source = Source(split, BATCH, 1, SampleOrder(split.num_examples, 0))
        pipeline = Pipeline(source, tf.distribute.get_strategy())
        next(pipeline.open(0))
        for _ in range(rounds):
            for position in (10, 10_000_000):
                began = time.perf_counter()
                next(pipeline.open(position // BATCH))
                print(f"position {position}: {time.perf_counter() - began:.3f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.input", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=30, help="that are measured in a round")
    parser.add_argument("--cores", type=int, nargs="+", help="numbers of the cores to run on")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, args.cores)
        tf.config.threading.set_intra_op_parallelism_threads(len(args.cores))
    if args.resume:
        resume(args.rounds)
    elif args.memory:
        memory(args.records if args.records != parser.get_default("records") else 100_000)
    else:
        compare(args.records, args.rounds, args.batches)


if __name__ == "__main__":
    main()
