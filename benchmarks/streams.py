"""How a stream is continued: `python -m benchmarks.streams [--steps N] [--rounds N]`.

The same stream, at the same step, by a checkpoint of its iterator and by skipping: the time of a
save, of a restore, and the bytes of it. The stream: images [32, 32, 3], `shuffle(10000)`, an
augmentation for each image, batches of 128.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

NUM_IMAGES = 50_000
BATCH = 128


def stream(shuffled: str) -> tf.data.Dataset:
    """Return the stream; `shuffled`: whether the buffer holds images or their indices."""
    images = np.random.default_rng(0).integers(0, 256, [NUM_IMAGES, 32, 32, 3], np.uint8)

    # Stateless: an iterator with a stateful random operation cannot be saved at all.
    def augment(number: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([number, 0])
        image = tf.cast(image, tf.float32) / 255.0
        image = tf.image.stateless_random_flip_left_right(image, seed)
        padded = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
        return tf.image.stateless_random_crop(padded, [32, 32, 3], seed)

    if shuffled == "images":
        data = tf.data.Dataset.from_tensor_slices(images).shuffle(10_000, seed=0).repeat()
    else:
        held = tf.constant(images)
        data = tf.data.Dataset.range(NUM_IMAGES).shuffle(10_000, seed=0).repeat()
        data = data.map(lambda index: held[index])
    return data.enumerate().map(augment).batch(BATCH)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(shuffled: str, steps: int) -> dict[str, float]:
    """Return the seconds, and MB, of both ways to continue after `steps` steps."""
    data = stream(shuffled)
    iterator = iter(data)
    first = timed(lambda: next(iterator))
    reading = timed(lambda: [next(iterator) for _ in range(steps - 1)])
    expected = next(iterator)
    skipped = iter(data.skip(steps))
    skip = timed(lambda: next(skipped))
    with tempfile.TemporaryDirectory() as folder:
        iterator = iter(data)
        for _ in range(steps):
            next(iterator)
        prefix = f"{folder}/iterator"
        save = timed(lambda: tf.train.Checkpoint(iterator=iterator).write(prefix))
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        restored = iter(data)
        checkpoint = tf.train.Checkpoint(iterator=restored)
        restore = timed(lambda: (checkpoint.read(prefix), next(restored)))
    assert expected.shape == [BATCH, 32, 32, 3]
    return {
        "first element": first, "reading": reading, "skip": skip, "save": save,
        "restore": restore, "MB": size / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for shuffled in ("images", "indices"):
        rounds = [measure(shuffled, args.steps) for _ in range(args.rounds)]
        values = {name: statistics.median(item[name] for item in rounds) for name in rounds[0]}
        cells = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        print(f"shuffle buffer of {shuffled}, after {args.steps} steps: {cells}", flush=True)


if __name__ == "__main__":
    main()
