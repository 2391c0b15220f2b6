"""What augmentation costs: processor milliseconds for each image, beside reading and decoding it.

    python -m benchmarks.augment

JPEG files of 500 x 375, decoded to 224 x 224, in batches of 32. `partner` reads a second image for
each, as mixup would if its partner were any example. Rounds are interleaved; the least counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
import yaml
from PIL import Image

from trainer.datasets.image_folder import image_folder
from trainer.datasets.operations.augment import Augmentation

IMAGES = 64
BATCH = 32
ROUNDS = 5
CONF = Path(__file__).resolve().parents[1] / "conf" / "augment"


def write_images(folder: Path) -> None:
    """Write JPEG files of smooth noise, in two classes."""
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        small = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8))
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


def compiled(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    """Return a graph of a call."""
    return tf.function(lambda: function(*arguments), autograph=False)


def cases(folder: Path) -> dict[str, Callable[[], object]]:
    """Return what is measured, by name; each takes one batch."""
    functions: dict[str, Callable[[], object]] = {}
    indices = tf.range(BATCH, dtype=tf.int64)
    plain = image_folder(path=str(folder), test_fraction=0.2).train
    for name, count in (("fetch", 1), ("fetch with partner", 2)):
        both = tf.tile(indices, [count])
        functions[name] = compiled(plain.fetch, both)
    batch = {name: tf.constant(value) for name, value in plain.fetch(indices).items()}
    for file in sorted(CONF.glob("*.yaml")):
        options = yaml.safe_load(file.read_text())
        options = {
            key: value for key, value in options.items() if key not in ("_target_", "defaults")
        }
        data = image_folder(path=str(folder), test_fraction=0.2, augment=Augmentation(**options))
        draws = tf.random.stateless_uniform([BATCH, data.num_draws], [0, 1])
        functions[file.stem] = compiled(data.transform, batch, draws)
    return functions


def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        measured = cases(folder)
        least = dict.fromkeys(measured, float("inf"))
        for number in range(ROUNDS + 1):
            for case, function in measured.items():
                start = time.process_time()
                function()
                if number:  # the first call traces
                    least[case] = min(least[case], time.process_time() - start)
        for case, seconds in least.items():
            print(f"{case:20} {seconds / BATCH * 1000:8.2f} cpu ms an image")


if __name__ == "__main__":
    main()
