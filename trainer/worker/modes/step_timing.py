"""A process of mode=benchmark: takes the time of its steps, until its parent ends it.

The engine's own loop runs, without evaluation and checkpoints. All processes, also those of
different runs, begin to measure together: each reports that it is warm, and goes on; the parent
answers when all are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from trainer.cluster.messages import Channel, Measured
from trainer.cluster.network_namespace import sent_bytes
from trainer.engine.engine import Engine
from trainer.engine.graph.exchange.collectives import flat_sum

_WARM_CALLS = 3
_WARM_SECS = 1.0
_REPEATS = 5


def measure(engine: Engine, channel: Channel, begin: Callable[[], bool], secs: float) -> None:
    """Measure the exchange of the replicas alone, then steps; train on until the process is ended.

    Args:
        engine: the engine, built and not restored.
        channel: receives what is measured, as `Measured`: nothing when the process is warm, then
            the window of steps.
        begin: whether the parent has asked since the last call.
        secs: length of the window.
    """
    exchange = exchange_times(engine)
    calls = _between_calls(engine, channel, begin, secs, exchange)
    engine.train(lambda: next(calls))


def _between_calls(
    engine: Engine,
    channel: Channel,
    begin: Callable[[], bool],
    secs: float,
    exchange: dict[str, Any],
) -> Iterator[bool]:
    """Yield False between two graph calls, to train on: a benchmark is never stopped, but ended.

    It never waits: in a run of several processes the others would wait for it in the next step.
    """
    while not engine.pacer.started:
        yield False
    warm = time.monotonic() + min(_WARM_SECS, secs)
    for _ in range(_WARM_CALLS):
        yield False
    while time.monotonic() < warm:
        yield False
    channel.send(Measured({}))
    while not begin():
        yield False
    engine.reporter.begin_window(engine.step)
    first, began, busy, sent = _readings(engine)
    while time.monotonic() - began < secs:
        yield False
    last, ended, busy_then, sent_then = _readings(engine)
    steps = last - first
    step_secs = (ended - began) / steps
    window = {
        "steps": steps,
        "step_secs": step_secs,
        "examples_per_sec": engine.plan.epochs.global_size / step_secs,
        "processor_secs": (busy_then - busy) / steps,
        "network_bytes": None if sent is None or sent_then is None else (sent_then - sent) / steps,
        "input_wait": engine.reporter.speed(last)["input_wait_fraction"],
        "replicas": engine.loop.strategy.num_replicas_in_sync,
    }
    channel.send(Measured({**exchange, **window}))
    while True:
        yield False


def _readings(engine: Engine) -> tuple[int, float, float, int | None]:
    return engine.step, time.monotonic(), time.process_time(), sent_bytes()


def exchange_times(engine: Engine) -> dict[str, Any]:
    """Measure what the replicas exchange in a step, without the rest of the step; collective.

    Returns:
        `gradient_bytes` and `exchange_secs` of the gradient's sum: None with one replica.
    """
    models = engine.state.task.models.values()
    weights = [variable for model in models for variable in model.trainable_variables]
    size = 4 * sum(item.shape.num_elements() for item in weights)  # sums are float32
    strategy = engine.loop.strategy
    if strategy.num_replicas_in_sync == 1:
        return {"gradient_bytes": size, "exchange_secs": None}
    exchange = engine.loop.options.exchange

    def sum_gradient() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        # Any values will do: to make some would take time that the exchange does not.
        gradients = [tf.cast(variable, tf.float32) for variable in weights]
        if exchange is not None:
            sums, _ = exchange(context, gradients, [])
        else:
            sums = flat_sum(context, gradients)
        with tf.control_dependencies(sums):
            return tf.reshape(sums[0], [-1])[0]

    return {"gradient_bytes": size, "exchange_secs": _time_of(strategy, sum_gradient)}


def _time_of(strategy: tf.distribute.Strategy, work: Callable[[], tf.Tensor]) -> float:
    """Return the seconds that `work`, in replica context, takes in a loop on the device."""

    @tf.function(autograph=False)
    def repeat(count: tf.Tensor) -> tf.Tensor:
        def body(number: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([total]):
                results = strategy.experimental_local_results(strategy.run(work))
            return number + 1, total + results[0]

        return tf.while_loop(lambda number, _: number < count, body, (0, tf.zeros([])))[1]

    repeat(tf.constant(1)).numpy()
    began = time.monotonic()
    repeat(tf.constant(_REPEATS)).numpy()
    return (time.monotonic() - began) / _REPEATS
