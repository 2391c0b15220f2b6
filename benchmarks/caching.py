"""What `dataset.cache` brings: processor time of an example, and examples a second.

`python -m benchmarks.caching` prints a table, with ratios to the same path without a cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.input import CLASSES, SIZE, make, measure, ours
from trainer.datasets.image_folder import image_folder
from trainer.datasets.tfrecord import tfrecord

KINDS = ("none", "memory", "disk")


def splits(folder: Path, kind: str) -> dict[str, object]:
    """Return the training splits that are measured; of each, a tenth is tested on."""
    images = image_folder(path=str(folder / "classes"), image_size=list(SIZE), cache=kind)
    records = tfrecord(
        path=str(folder),
        features={"image": "image", "label": "int"},
        num_classes=CLASSES,
        image_size=list(SIZE),
        cache=kind,
    )
    return {"image files": images.train, "tfrecord": records.train}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.caching", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--records", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20, help="that are measured in a round")
    args = parser.parse_args()
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HOME"] = name
        for number, file in enumerate(make(folder, args.records)):
            place = folder / "classes" / str(number % CLASSES) / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
        opened = {kind: splits(folder, kind) for kind in KINDS}
        for path in opened["none"]:
            for kind in KINDS[1:]:  # one epoch, which fills the cache
                measure(ours(opened[kind][path]), args.records // 64)
        for _ in range(args.rounds):
            for path in opened["none"]:
                for kind in KINDS:
                    figures = measure(ours(opened[kind][path]), args.batches)
                    results.setdefault((path, kind), []).append(figures)
    print("| path | cache | cpu ms | examples/s | cpu, of none | examples/s, of none |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (path, kind), values in results.items():
        base = results[path, "none"]
        cpu, rate = (statistics.median(column) for column in zip(*values, strict=True))
        ratios = [
            statistics.median(one[n] / other[n] for one, other in zip(values, base, strict=True))
            for n in (0, 1)
        ]
        print(f"| {path} | {kind} | {cpu:.2f} | {rate:.0f} | {ratios[0]:.2f} | {ratios[1]:.1f} |")


if __name__ == "__main__":
    main()
