"""What evaluates and predicts, and what a run has saved, for processes that do not train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config import batch_sizes
from trainer.config.schema import Experiment
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.evaluation.evaluator import Evaluator
from trainer.engine.graph.checks.graph_check import GraphCheck
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.plan import Epochs, make_plan
from trainer.engine.process_group import ProcessGroup
from trainer.engine.reporter import ResultLines
from trainer.protocols import DatasetDefaults, with_defaults
from trainer.runs import provenance
from trainer.runs.recorded_metrics import read_evaluations
from trainer.strategies.one_device import OneDevice
from trainer.strategies.strategy import Strategy
from trainer.worker.building.build_dataset import build_dataset
from trainer.worker.building.build_model import (
    Learner,
    build_learner,
    create_strategy,
    make_inference,
)
from trainer.worker.context import WorkerContext


@dataclass(frozen=True)
class CheckpointEvaluation:
    """What evaluates the checkpoints of a run.

    Attributes:
        epochs: the training's epochs, for the log.
        lines: makes the lines of evaluations; also knows the split, `validation` or `test`.
    """

    checkpointer: Checkpointer
    evaluator: Evaluator
    epochs: Epochs
    lines: ResultLines


def sidecar(context: WorkerContext) -> CheckpointEvaluation:
    """Build what evaluates the checkpoints of a run beside its training, on one device.

    Args:
        context: this process; in its run directory the training has begun.

    Raises:
        ConfigError: something is wrong that only this machine, the data or the model can tell.
    """
    if context.cluster.is_local:
        # The training is on the same machine, and takes all memory of its GPUs.
        tf.config.set_visible_devices([], "GPU")
    strategy = OneDevice()
    tf_strategy = create_strategy(context, strategy)
    learner, checkpointer = _saved_run(context, strategy, tf_strategy)
    validation = with_defaults(learner.dataset, DatasetDefaults).validation
    name = "test" if validation is None else "validation"
    split = learner.dataset.test if validation is None else validation
    source = Source(split, learner.sizes.evaluated, num_replicas=1)
    loops = Loops(
        tf_strategy,
        input_outside=OneDevice.input_outside,
        in_order=learner.sizes.shards is not None,
    )
    loops.check = GraphCheck(learner.state.trackables, context.channel.line)
    inference = make_inference(context, learner, loops, ProcessGroup(tf_strategy))
    evaluator = inference.evaluator(source, inference.predictor(source))
    lines = ResultLines(
        context.experiment,
        learner.plan.total_steps,
        name,
        metric_names(learner.task),
        inference.directions,
    )
    lines.explained.add("train")  # by the training, if there is one
    lines.recall(metrics for _, metrics in read_evaluations(context.run_dir, name))
    return CheckpointEvaluation(checkpointer, evaluator, learner.plan.epochs, lines)


def build_for_export(
    experiment: Experiment, run_dir: Path, channel: Channel
) -> tuple[Learner, Checkpointer]:
    """Build what a run has saved, and what restores it, on one device, whatever trained it."""
    context = WorkerContext(experiment, run_dir, channel)
    strategy = OneDevice()
    return _saved_run(context, strategy, create_strategy(context, strategy))


def _saved_run(
    context: WorkerContext, strategy: Strategy, tf_strategy: tf.distribute.Strategy
) -> tuple[Learner, Checkpointer]:
    experiment = context.experiment
    # The batch sizes of the training, which another process does or has done.
    num_replicas = provenance.num_replicas(context.run_dir) or 1
    sizes = batch_sizes.resolve_batch_sizes(experiment.batch, num_replicas)
    dataset = build_dataset(experiment, context)
    plan = make_plan(experiment, dataset.train.num_examples, sizes.global_size)
    learner = build_learner(context, strategy, tf_strategy, dataset, plan, sizes)
    checkpointer = Checkpointer(context.run_dir / "checkpoints", learner.state.trackables())
    return learner, checkpointer
