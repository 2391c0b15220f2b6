"""What task=keras costs: `python -m benchmarks.keras_task [--rounds N] [--data FILE]`.

The same networks by `task=classification` and, compiled, by `task=keras`: the time of a step.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import data_file, interleave, step_ms, table

LENGTHS = {"softmax": (6_000, 2_000), "tutorial_cnn": (240, 80)}
"""Steps of a training, and those of a summary; the first summary is left out."""


def softmax(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return the compiled softmax regression."""
    from trainer.models.softmax import softmax as build

    return _compiled(build(input_shape, num_classes))


def tutorial_cnn(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return the compiled network of the tutorial."""
    from trainer.models.tutorial_cnn import tutorial_cnn as build

    return _compiled(build(input_shape, num_classes))


def _compiled(model: Any) -> Any:
    import tensorflow as tf

    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("rmsprop", loss, metrics=["accuracy"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.keras_task", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    with data_file(args.data) as data:
        for name in LENGTHS:
            own = ("task=keras", f"model._target_=benchmarks.keras_task.{name}")
            jobs = {
                "task=classification": partial(
                    step_ms, data, *LENGTHS[name], f"model={name}", "optimizer=rmsprop"
                ),
                "task=keras": partial(step_ms, data, *LENGTHS[name], *own),
            }
            base = "task=classification"
            print(table(name, "ms", interleave(jobs, args.rounds), base), flush=True)


if __name__ == "__main__":
    main()
