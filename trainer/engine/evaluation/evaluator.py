"""Evaluation of a whole split, each example exactly once: sums in the graph, or predicted rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.split_loops import EvalLoop, PredictLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.metric_sums import num_sums, unpack
from trainer.engine.pacing import PacedCalls
from trainer.engine.process_group import ProcessGroup
from trainer.protocols import TaskDefaults, with_defaults
from trainer.summaries.writers.writer import Writer

_BLOCK_ROWS = 1024
_MAX_ROWS = 4096  # of one chunk, unless a single batch has more

Rows: TypeAlias = Mapping[str, np.ndarray]
"""What is predicted for n examples, name -> [n, ...]."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation has found.

    Attributes:
        images: name -> [N, H, W, 3] uint8, in the chief.
    """

    metrics: dict[str, float]
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def joined(self, other: Evaluation) -> Evaluation:
        """Return what both have found."""
        return Evaluation(
            {**self.metrics, **other.metrics},
            {**self.images, **other.images},
            {**self.texts, **other.texts},
        )

    def show(self, writer: Writer, split: str, step: int) -> None:
        """Write images and texts of a split after `step` updates."""
        for name, images in self.images.items():
            writer.images(split, step, name, images)
        for name, texts in self.texts.items():
            writer.texts(split, step, name, texts)


OfRows: TypeAlias = Callable[[int, Iterator[Rows]], Evaluation]
"""Evaluates all rows of a split, in blocks, after so many updates; may also write files."""


@dataclass(eq=False)
class Evaluator:
    """Evaluates a split by its predicted rows, if there are any."""

    of_rows: Sequence[tuple[Predictor, OfRows]] = field(default=(), kw_only=True)

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        """Evaluate the whole split; collective.

        Raises:
            Stopped: a stop was requested of some process; the weights are as before.
        """
        evaluation = Evaluation({})
        for predictor, of_rows in self.of_rows:
            evaluation = evaluation.joined(predictor.evaluate(of_rows, stop_requested, enter))
        return evaluation


@dataclass(eq=False)
class Predictor:
    """Predicts the examples of a split, in its order, with the averaged weights if there are some.

    Each batch has the static size of training, `source.per_replica` on each replica, and the last
    one is padded: the same batch size gives the same bits on every strategy.

    Attributes:
        state: the state whose models predict; between two chunks it must hold the trained weights,
            not their averages.
        decode: returns the text of tokens, if texts are predicted.
    """

    state: TrainState
    loop: PredictLoop
    source: Source
    process_group: ProcessGroup
    channel: Channel
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        self.num_examples = self.source.split.num_examples
        max_batches = max(1, _MAX_ROWS // self.source.global_size)
        self._calls = PacedCalls(
            self.source.num_steps, self.process_group, self.channel, max_batches
        )

    def predict(
        self,
        start: int = 0,
        stop_requested: Callable[[], bool] = lambda: False,
        enter: Callable[[str], None] = lambda phase: None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the predictions for the examples from `start` on, in chunks of bounded size.

        Each chunk is collective: every process must consume all of them.

        Args:
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Yields:
            In every process name -> [n, ...]: `id` int64; `weight` float32, 0 for an example that
            could not be read; `label` if the split has it; the outputs of the task's
            `predict_step`.

        Raises:
            Stopped: a stop was requested of some process.
        """
        if start >= self.num_examples:
            return
        first_batch = start // self.source.global_size
        iterator = self.loop.feed.open(first_batch)
        for first, count in self._calls.batches(stop_requested, enter, first_batch):
            # Swapped for each call: between two chunks the caller finds the trained weights.
            self.state.swap_averages()
            try:
                rows = self.loop.run(iterator, first, count)
            finally:
                self.state.swap_averages()
            position = first * self.source.global_size
            unpadded = slice(max(0, start - position), self.num_examples - position)
            yield {name: value[unpadded] for name, value in rows.items()}

    def evaluate(
        self, of_rows: OfRows, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> Evaluation:
        """Return what a function finds in all rows, called in the chief; collective."""
        rows = blocks(self.predict(0, stop_requested, enter), _BLOCK_ROWS)
        is_chief = self.process_group.is_chief
        step = int(self.state.step.numpy())
        found = of_rows(step, rows) if is_chief else Evaluation({})
        for _ in rows:
            pass  # every process predicts all of them
        text = self.process_group.broadcast_text_from_chief(json.dumps(found.metrics))
        return replace(found, metrics=json.loads(text))


@dataclass(eq=False)
class SplitEvaluator(Evaluator):
    """Evaluates a split by its sums, with averaged weights if there are some, and by its rows."""

    state: TrainState
    loop: EvalLoop
    source: Source
    process_group: ProcessGroup
    channel: Channel
    part_size: int

    def __post_init__(self) -> None:
        task = with_defaults(self.state.task, TaskDefaults)
        source = self.source
        # What remains after the whole batches, if the task is to see no other examples.
        self._has_rest = task.eval_part is not None
        batches = (
            source.split.num_examples // source.global_size if self._has_rest else source.num_steps
        )
        self._calls = PacedCalls(batches, self.process_group, self.channel)

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        self.state.swap_averages()
        try:
            evaluation = Evaluation(unpack(self.state.task, self._sums(stop_requested, enter)))
        finally:
            self.state.swap_averages()
        return evaluation.joined(super().evaluate(stop_requested, enter))

    def _sums(self, stop_requested: Callable[[], bool], enter: Callable[[str], None]) -> np.ndarray:
        """Return the task's metrics as packed sums and weights, [num_sums] float64."""
        iterator = self.loop.feed.open(0)
        total = tf.zeros([num_sums(self.state.task)], tf.float64)
        for first, count in self._calls.batches(stop_requested, enter):
            total = self.loop.run(
                iterator, total, tf.constant(first, tf.int64), tf.constant(count, tf.int64)
            )
        if self._has_rest:
            enter("compile")
            total = self._with_rest(total)
        return total.numpy()

    def _with_rest(self, total: tf.Tensor) -> tf.Tensor:
        """Add the examples after the last whole batch, in every process, in parts of one size."""
        source = self.source
        end = source.split.num_examples
        first = end - end % source.global_size
        for start in range(first, end, self.part_size):
            self.channel.beat()
            indices = tf.range(start, min(start + self.part_size, end), dtype=tf.int64)
            with tf.device("CPU:0"):
                batch = source.split.fetch(indices)
            batch = source.complete(batch, indices, tf.ones([len(indices)]))
            total = self.loop.rest(batch, len(indices) / (end - first), total)
        return total


def blocks(chunks: Iterable[Rows], size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of all chunks in blocks of `size` rows.

    The length of a chunk depends on the clock, and no bit of a metric may. Rows of weight 0, which
    are examples that could not be read, are left out.
    """
    pending: dict[str, np.ndarray] = {}
    for chunk in chunks:
        is_valid = chunk["weight"] > 0
        rows = {name: values[is_valid] for name, values in chunk.items()}
        if pending:
            rows = {name: np.concatenate([pending[name], values]) for name, values in rows.items()}
        pending = rows
        while len(pending["weight"]) >= size:
            yield {name: values[:size] for name, values in pending.items()}
            pending = {name: values[size:] for name, values in pending.items()}
    if pending and len(pending["weight"]):
        yield pending


def columns(rows: Iterable[Rows]) -> dict[str, np.ndarray]:
    """Return the rows of all blocks by name, [N, ...], or an empty dict."""
    parts = list(rows)
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
