"""What is trained, and by whom. No TensorFlow.

One more contestant is one more line in `STEADFAST`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES
from trainer.cluster.environment import default_threads

EXAMPLES = 4096
STEPS_PER_LOOP = 10


@dataclass(frozen=True)
class Job:
    """What every contestant trains, on the same synthetic images.

    Attributes:
        model: a choice of `model`.
        optimizer: a key of `LEARNING_RATES`.
        shape: height, width and channels of an image.
        classes: how many there are.
    """

    model: str
    optimizer: str
    shape: tuple[int, int, int]
    classes: int = 10

    @property
    def per_worker(self) -> int:
        return BATCH_SIZES[self.model]

    def overrides(self, workers: int, secs: float) -> list[str]:
        """Return the overrides that all of Steadfast's contestants have in common."""
        height, width, channels = self.shape
        return [
            "mode=benchmark",
            f"benchmark.secs={secs}",
            "strategy=multi_worker",
            f"strategy.workers={workers}",
            f"model={self.model}",
            "dataset=synthetic",
            f"dataset.num_examples={EXAMPLES}",
            f"dataset.image_size=[{height},{width}]",
            f"dataset.channels={channels}",
            f"dataset.num_classes={self.classes}",
            f"optimizer={self.optimizer}",
            f"optimizer.learning_rate={LEARNING_RATES[self.optimizer]}",
            "batch.global_size=null",
            f"batch.per_replica={self.per_worker}",
            f"train.steps_per_loop={STEPS_PER_LOOP}",
            "devices.gpus=0",
            f"devices.threads={max(1, default_threads() // workers)}",
        ]


JOBS = {
    "tutorial_cnn": Job("tutorial_cnn", "rmsprop", (28, 28, 1)),
    "mobilenet": Job("mobilenet", "adam", (32, 32, 3)),
    "wide": Job("softmax", "sgd", (64, 64, 3), 1000),
    "adam50m": Job("softmax", "adam", (128, 128, 1), 3052),
}
"""Name -> job: `wide` has 12 million weights and little to compute, `adam50m` 50 million."""

TUTORIAL = {
    "tutorial": "tutorial's loop",
    "tutorial_fused": "tutorial's loop, fused optimizer",
}
"""TensorFlow's own: name -> title. They train the models of the tutorial alone."""

OF_TUTORIAL = ("tutorial_cnn", "mobilenet")

_RING = "strategy.communication=ring"
STEADFAST: dict[str, tuple[str, Sequence[str]]] = {
    "steadfast": ("Steadfast", ()),
    "ring": ("Steadfast, ring", (_RING,)),
    "bfloat16": ("Steadfast, compress=bfloat16", (_RING, "strategy.compress=bfloat16")),
    "float16": ("Steadfast, compress=float16", (_RING, "strategy.compress=float16")),
}
"""Name -> title, and what it overrides."""

TITLES = TUTORIAL | {name: title for name, (title, _) in STEADFAST.items()}
