"""Test accuracy of each shipped model in 16 bits and compiled by XLA, against float32.

    python -m benchmarks.precision [--models cnn,vit] [--steps N]

Whole trainings of small models on data that come with the project, one after the other in one
process, from the same weights and with the same samples. What another seed makes of float32 tells
which differences mean nothing.
"""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import tempfile
from pathlib import Path

import tensorflow as tf

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.runs.status import run_status
from trainer.worker.building import build

COMMON = ("batch.global_size=32", "writers=[jsonl]", "checkpoint.every_epochs=null")
ATTENTION = ("model.width=32", "model.heads=2", "model.layers=2")
TEXTS = ("dataset=sentiment", "optimizer.learning_rate=0.002")
MODELS = {
    "softmax": (300, ("optimizer.learning_rate=0.01",)),
    "mlp": (300, ()),
    "cnn": (300, ("model.width=8",)),
    "tutorial_cnn": (200, ("optimizer.learning_rate=0.001", "dataset.image_size=[28,28]")),
    "vit": (300, (*ATTENTION, "model.patch=2")),
    "text_cnn": (200, (*TEXTS, "model.width=32")),
    "transformer_encoder": (200, (*TEXTS, *ATTENTION, "model.hidden=64")),
    "transformer": (
        800,  # before that it still learns fast, and every difference is a large one
        (*ATTENTION, "model.hidden=64", "task=language_model", "dataset=sentences",
         "dataset.length=32", "optimizer.learning_rate=0.003"),
    ),
    "unet": (
        150,
        ("task=segmentation", "dataset=shapes", "model.width=4", "optimizer.learning_rate=0.005"),
    ),
    "resnet": (150, ("model.depth=8",)),
    "mobilenet": (150, ("model.alpha=0.35",)),
    "keras_application": (150, ("model.name=MobileNetV3Small",)),
}  # fmt: skip
"""A model -> its steps, and what is trained; digits unless it is said.

Without resnet50, which takes as long as all others, and those that need a file.
"""

VARIANTS = {
    "float32": (),
    "other seed": ("seed=1",),
    "mixed_bfloat16": ("precision=mixed_bfloat16",),
    "jit": ("jit=true",),
}


def accuracy(model: str, *overrides: str, steps: int | None = None) -> float:
    """Train a model of `MODELS`; return its accuracy on the whole test split."""
    length, options = MODELS[model]
    chosen = (f"model={model}", f"train.steps={steps or length}", *COMMON, *options, *overrides)
    tf.keras.backend.clear_session()
    with tempfile.TemporaryDirectory() as folder:
        experiment = compose([*chosen, f"evaluate.every_steps={steps or length}"])
        try:
            build.engine(experiment, Path(folder), Channel(lambda message: None)).train(
                lambda: False
            )
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
        return run_status(Path(folder)).metrics["accuracy"]


def main() -> None:
    """Print a row for each model: accuracy of float32, and the differences of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, help="instead of each model's own")
    args = parser.parse_args()
    print(f"{'accuracy':20} {'steps':>6} " + " ".join(f"{name:>14}" for name in VARIANTS))
    for model in args.models.split(","):
        plain, *others = (
            accuracy(model, *overrides, steps=args.steps) for overrides in VARIANTS.values()
        )
        cells = [f"{plain:14.4f}", *(f"{value - plain:+14.4f}" for value in others)]
        print(f"{model:20} {args.steps or MODELS[model][0]:6} " + " ".join(cells), flush=True)


if __name__ == "__main__":
    main()
