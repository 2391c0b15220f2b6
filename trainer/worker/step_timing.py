"""A process of mode=benchmark: takes the time of its steps, until its parent ends it.

The engine's own loop runs, without evaluation and checkpoints. All processes, also those of
different runs, begin to measure together: each reports that it is warm, and goes on; the parent
answers when all are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.cluster.network_namespace import loopback_bytes
from trainer.engine.engine import Engine
from trainer.engine.graph.collectives import flat_sum
from trainer.summaries import resource_usage
from trainer.summaries.kernel_times import kernel_times

_WARM_CALLS = 3
_WARM_SECS = 1.0
_PROFILED_STEPS = 20
_SMALL_REPEATS = 100
_GRADIENT_REPEATS = 5


def measure(engine: Engine, channel: Channel, begin: Callable[[], bool], secs: float) -> None:
    """Measure the exchange of the replicas alone, then steps; train on until the process is ended.

    Args:
        engine: the engine, built and not restored.
        channel: receives what is measured, as `Measured`: nothing when the process is warm; the
            window of steps; when the parent asks again, `kernels`: seconds of a step by kind.
        begin: whether the parent has asked since the last call.
        secs: length of the window.
    """
    exchange = exchange_times(engine)

    def report(values: dict[str, Any]) -> None:
        channel.measured({**exchange, **values} if values else {})

    engine.train(StepTimer(engine, report, begin, secs))


class StepTimer:
    """Called by the engine between two graph calls; takes the time from one of them to another.

    It never waits: in a run of several processes the others would wait for it in the next step.

    Args:
        engine: the engine that trains.
        report: sends what is measured.
        begin: whether the parent has asked since the last call.
        secs: length of the window.
    """

    def __init__(
        self,
        engine: Engine,
        report: Callable[[dict[str, Any]], None],
        begin: Callable[[], bool],
        secs: float,
    ) -> None:
        self._engine = engine
        self._report = report
        self._begin = begin
        self._secs = secs
        self._calls = 0
        self._warming_since = 0.0
        self._window: _Window | None = None
        self._next: Callable[[], None] = self._warm_up

    def __call__(self) -> bool:
        """Do what is next; return False: a benchmark is never stopped, but ended."""
        self._next()
        return False

    def _warm_up(self) -> None:
        if not self._engine.pacer.started:
            return
        now = time.monotonic()
        self._calls += 1
        self._warming_since = self._warming_since or now
        warm_secs = min(_WARM_SECS, self._secs)
        if self._calls > _WARM_CALLS and now - self._warming_since >= warm_secs:
            self._report({})
            self._next = self._await_begin

    def _await_begin(self) -> None:
        if self._begin():
            engine = self._engine
            engine.reporter.begin_window(engine.step)
            self._window = _Window.begin(engine.step)
            self._next = self._end_window

    def _end_window(self) -> None:
        assert self._window is not None
        if time.monotonic() - self._window.began < self._secs:
            return
        engine = self._engine
        self._report(
            {
                **self._window.values(engine.step, engine.plan.epochs.global_size),
                "input_wait": engine.reporter.speed(engine.step)["input_wait_fraction"],
                **resource_usage.resource_metrics(),
                "peak_memory_mib": resource_usage.peak_memory_mib(),
                "replicas": engine.loop.strategy.num_replicas_in_sync,
            }
        )
        self._next = self._profile

    def _profile(self) -> None:
        if not self._begin():
            return
        engine = self._engine
        # The chief's count is that of all.
        engine.pacer.count = min(engine.pacer.count, _PROFILED_STEPS)
        first = engine.step
        tf.profiler.experimental.start(str(engine.run_dir))

        def end() -> None:
            tf.profiler.experimental.stop()
            steps = engine.step - first
            times = kernel_times(engine.run_dir).items()
            self._report({"kernels": {name: secs / steps for name, secs in times}})
            self._next = self._profile

        self._next = end


@dataclass(frozen=True)
class _Window:
    """The beginning of a window of steps."""

    step: int
    began: float
    busy: float
    sent: int | None

    @classmethod
    def begin(cls, step: int) -> _Window:
        return cls(step, time.monotonic(), time.process_time(), loopback_bytes())

    def values(self, step: int, global_size: int) -> dict[str, Any]:
        """Return seconds and processor seconds of a step, and the bytes on the network in it."""
        steps = step - self.step
        secs = (time.monotonic() - self.began) / steps
        sent = loopback_bytes()
        return {
            "step_secs": secs,
            "examples_per_sec": global_size / secs,
            "processor_secs": (time.process_time() - self.busy) / steps,
            "network_bytes": None
            if sent is None or self.sent is None
            else (sent - self.sent) / steps,
            "steps": steps,
        }


def exchange_times(engine: Engine) -> dict[str, Any]:
    """Measure what the replicas exchange in a step, without the rest of the step; collective.

    Returns:
        `gradient_bytes` and `weight_bytes`; and with several replicas `latency_secs` of an
        all-reduce of one number, and `exchange_secs` of the gradient's sum.
    """
    models = engine.state.task.models.values()
    weights = [variable for model in models for variable in model.trainable_variables]
    variables = [variable for model in models for variable in model.variables]
    sizes = {
        "gradient_bytes": 4
        * sum(item.shape.num_elements() for item in weights),  # sums are float32
        "weight_bytes": sum(item.shape.num_elements() * item.dtype.size for item in variables),
    }
    strategy = engine.loop.strategy
    if strategy.num_replicas_in_sync == 1:
        return sizes
    exchange = engine.loop.options.exchange

    def sum_small() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]))

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

    return {
        **sizes,
        "latency_secs": _time_of(strategy, sum_small, _SMALL_REPEATS),
        "exchange_secs": _time_of(strategy, sum_gradient, _GRADIENT_REPEATS),
    }


def _time_of(
    strategy: tf.distribute.Strategy, work: Callable[[], tf.Tensor], repeats: int
) -> float:
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
    repeat(tf.constant(repeats)).numpy()
    return (time.monotonic() - began) / repeats
