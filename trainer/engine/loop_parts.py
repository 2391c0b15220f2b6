"""What a training loop is built from, whatever its batches come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster
from trainer.config.batch_sizes import BatchSizes
from trainer.config.schema import Experiment
from trainer.engine.graph.input.feed import Feed
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.process_group import ProcessGroup


@dataclass(frozen=True)
class LoopParts:
    """The parts of a training loop.

    Attributes:
        state: every variable; also the task.
        learning_rates: the learning rate of each optimizer at a step, by its name in the log.
        with_faults: returns a feed with the faults that are injected there.
    """

    experiment: Experiment
    run_dir: Path
    channel: Channel
    cluster: Cluster
    strategy: tf.distribute.Strategy
    process_group: ProcessGroup
    state: TrainState
    sizes: BatchSizes
    options: StepOptions
    learning_rates: Mapping[str, Callable[[Any], Any]]
    with_faults: Callable[[Feed], Feed]
