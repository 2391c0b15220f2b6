"""TrainState: everything that the next step, and the next line of the log, depend on. What is here is in every checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainer.protocols import Callback, Task
from trainer.shards import split_alike

if TYPE_CHECKING:
    from trainer.guard import Guard


class TrainState:
    """The one object that is saved. Created in `strategy.scope()`, complete before anything is restored.

    The input has no part in it: the order of samples is a function of the step.

    Attributes:
        guard: what has been left out, and the losses that tell a spike.
        step: number of updates made, int64.
        reported: the last step whose evaluation and log lines are complete, int64; a run stopped within an evaluation
            repeats it.
        ended: whether a callback has ended the training before its last step.
        window: metric sums and weights since the last summary, [2 * metrics] float64.
        epoch: the same since the last end of an epoch.
        averages: for each model, the moving average of each trainable variable; empty without `ema_decay`.
        loss_scale: the state of mixed_float16's loss scale; None without.
        gradient_norm: the global norm of the gradient of the last sound update, before it was clipped, float32; 0 before the first.
            Steps that are handed out leave it as it is.
        peak: the largest absolute value in the last gradient that travelled compressed, float32; 0 before the first.
        repeated: steps that were begun a second time because a worker was lost, int64; 0 where steps are not handed out.
    """

    def __init__(
        self, task: Task, callbacks: Mapping[str, Callback], guard: Guard, *, num_metrics: int, ema_decay: float | None, mixed_float16: bool
    ) -> None:
        self.task, self.callbacks, self.guard, self.ema_decay = task, callbacks, guard, ema_decay
        self.step = replicated(tf.constant(0, tf.int64), "step")
        self.reported = replicated(tf.constant(0, tf.int64), "reported")
        self.ended = replicated(tf.constant(False), "ended")
        self.window = replicated(tf.zeros([2 * num_metrics], tf.float64), "window")
        self.epoch = replicated(tf.zeros([2 * num_metrics], tf.float64), "epoch")
        self.gradient_norm = replicated(tf.constant(0.0), "gradient_norm")
        self.peak = replicated(tf.constant(0.0), "peak")
        self.repeated = replicated(tf.constant(0, tf.int64), "repeated")
        self.loss_scale = LossScale() if mixed_float16 else None
        self.averages: dict[str, list[tf.Variable]] = {}
        self._saved_optimizers: dict[str, Any] = {}
        self._saved_averages: dict[str, Any] = {}
        for name, model in task.models.items():
            if name in task.optimizers:
                # Slots made before the restore: a checkpoint that lacks one is then an error and not a silent zero.
                task.optimizers[name]._create_all_weights(model.trainable_variables)
                self._saved_optimizers[name] = _saved(task.optimizers[name], model.trainable_variables)
            if ema_decay is not None:
                self.averages[name] = [replicated(variable.read_value(), "average") for variable in model.trainable_variables]
                self._saved_averages[name] = split_alike(self.averages[name], model.trainable_variables)

    def trackables(self) -> dict[str, Any]:
        """Gives all that is saved, by name."""
        return {
            "step": self.step,
            "reported": self.reported,
            "ended": self.ended,
            "window": self.window,
            "epoch": self.epoch,
            "gradient_norm": self.gradient_norm,
            "peak": self.peak,
            "repeated": self.repeated,
            "models": dict(self.task.models),
            "optimizers": self._saved_optimizers,
            "averages": self._saved_averages,
            "guard": self.guard.trackables(),
            "loss_scale": {} if self.loss_scale is None else dict(vars(self.loss_scale)),
            "callbacks": {name: _variables(callback) for name, callback in self.callbacks.items()},
        }

    def digests(self, strategy: tf.distribute.Strategy) -> dict[str, int]:
        """Gives a hash of every variable as this process holds it, 40 bits each, by name."""
        local = {name: strategy.experimental_local_results(variable)[0] for name, variable in self.variables().items()}
        return {name: int.from_bytes(hashlib.sha256(value.numpy().tobytes()).digest()[:5]) for name, value in local.items()}

    def variables(self) -> dict[str, tf.Variable]:
        """Gives every variable, shards one by one, by name."""
        found: dict[str, tf.Variable] = {}

        def walk(node: Any, name: str) -> None:
            if isinstance(node, Mapping):
                for key, value in node.items():
                    walk(value, f"{name}/{key}" if name else str(key))
            elif isinstance(node, tf.Variable) or not hasattr(node, "variables"):
                found[name if name not in found else f"{name} ({len(found)})"] = node
            else:
                variables = node.variables() if callable(node.variables) else node.variables
                walk({variable.name: variable for variable in variables}, name)

        averages = {name: dict(enumerate(group)) for name, group in self.averages.items()}
        walk({**self.trackables(), "optimizers": self.task.optimizers, "averages": averages}, "")
        return found

    def update_averages(self, step: tf.Tensor, dropped: tf.Tensor) -> None:
        """Moves the averages towards the weights, in replica context, after update number `step` (scalar int64, from 0).

        They stay if the update was `dropped` (bool scalar).

        average += (1 - d) * (weight - average) with d = min(decay, (1 + step) / (10 + step)), so that a young average is
        not held back by the initial weights (the rule of tf.train.ExponentialMovingAverage).
        """
        if self.ema_decay is None:
            return
        step = tf.cast(step, tf.float32)
        decay = tf.where(dropped, 1.0, tf.minimum(self.ema_decay, (1.0 + step) / (10.0 + step)))
        for name, averages in self.averages.items():
            for average, variable in zip(averages, self.task.models[name].trainable_variables, strict=True):
                average.assign_add((1.0 - decay) * (variable - average))

    def reset_averages(self) -> None:
        """Sets the averages to the weights, in cross-replica context."""
        for name, averages in self.averages.items():
            for average, variable in zip(averages, self.task.models[name].trainable_variables, strict=True):
                average.assign(variable.read_value())

    def swap_averages(self) -> None:
        """Exchanges weights and averages, in cross-replica context: before and after an evaluation, before an export."""
        for name, averages in self.averages.items():
            for average, variable in zip(averages, self.task.models[name].trainable_variables, strict=True):
                value = variable.read_value()
                variable.assign(average.read_value())
                average.assign(value)


class LossScale:
    """Dynamic loss scale of mixed_float16 (Micikevicius et al. 2018): halved on overflow, doubled after 2,000 good steps."""

    INITIAL, GROWTH_STEPS = 2.0**15, 2000

    def __init__(self) -> None:
        self.value = replicated(tf.constant(self.INITIAL), "loss_scale")
        self.good_steps = replicated(tf.constant(0), "good_steps")

    def update(self, finite: tf.Tensor) -> None:
        """Moves the scale after a step whose gradients were finite or not (bool scalar, the same on all replicas)."""
        grow = tf.logical_and(finite, self.good_steps + 1 >= self.GROWTH_STEPS)
        factor = tf.where(finite, tf.where(grow, 2.0, 1.0), 0.5)
        self.value.assign(tf.maximum(1.0, self.value * factor))
        self.good_steps.assign(tf.where(tf.logical_and(finite, tf.logical_not(grow)), self.good_steps + 1, 0))


def replicated(value: tf.Tensor, name: str) -> tf.Variable:
    """Makes a variable that every replica holds and updates alike."""
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name=name)


def _saved(optimizer: tf.keras.optimizers.legacy.Optimizer, variables: list[tf.Variable]) -> dict[str, Any]:
    """Gives an optimizer's variables as they are saved.

    Not by Keras' own tracking of slots: it makes the slots of split variables anew whenever it is asked, and then misses them.
    """
    slots = {slot: [optimizer.get_slot(variable, slot) for variable in variables] for slot in optimizer.get_slot_names()}
    known = {id(variable) for group in slots.values() for variable in group}
    return {
        "slots": {slot: split_alike(group, variables) for slot, group in slots.items()},
        "others": [variable for variable in optimizer.variables() if id(variable) not in known],
    }


def _variables(owner: Callback) -> dict[str, tf.Variable]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, tf.Variable)}
