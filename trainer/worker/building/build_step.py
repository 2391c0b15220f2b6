"""Builds the options of a step, and what measures its exchange of gradients."""

from __future__ import annotations

from dataclasses import replace

from trainer.config.schema import Experiment
from trainer.engine.graph.exchange.gradient_exchange import ExchangeTimer
from trainer.engine.graph.step.clipping import Clip
from trainer.engine.graph.step.global_statistics import synchronized_layers
from trainer.engine.graph.step.shard_tree import TreeExchange
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.process_group import ProcessGroup
from trainer.engine.worker_clock import ExchangeTime
from trainer.strategies.strategy import Strategy
from trainer.worker.building.build_model import Learner


def step_options(
    experiment: Experiment, strategy: Strategy, learner: Learner, process_group: ProcessGroup
) -> tuple[StepOptions, ExchangeTime | None]:
    """Return the options of every step, and what tells how long its exchanges take.

    Returns:
        None for the time if there is nobody to wait for, or nothing to measure it with: on GPUs
        TensorFlow tells when an operation is queued, not when it is done, and with deterministic
        kernels it lets nobody read the clock.
    """
    options = _options(experiment, strategy, learner)
    if process_group.count == 1:
        return options, None
    wait = strategy.exchange_wait()
    if wait is not None:
        return options, ExchangeTime(wait)
    devices = process_group.local_devices
    if experiment.deterministic or any("CPU" not in device.upper() for device in devices):
        return options, None
    timer = ExchangeTimer(len(devices))
    return replace(options, exchange_timer=timer), ExchangeTime(timer.read, includes_travel=True)


def _options(experiment: Experiment, strategy: Strategy, learner: Learner) -> StepOptions:
    state = learner.state
    shards = learner.sizes.shards
    layers = synchronized_layers(learner.task.models.values())
    exchange = strategy.gradient_exchange(in_tree=shards is not None)
    return StepOptions(
        learner.sizes.accumulate,
        Clip(experiment.train.clip_norm, experiment.train.clip_value),
        experiment.jit,
        state.loss_scale,
        optimizer_reduces=strategy.optimizer_reduces,
        exchange=exchange or (None if shards is None else TreeExchange()),
        divergence_monitor=state.divergence_monitor,
        shards=shards,
        overlap=strategy.devices_per_replica > 1,
        synchronized=layers if shards or learner.sizes.accumulate > 1 else (),
        adds_differences=strategy.asynchronous,
    )
