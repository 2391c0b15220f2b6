"""TrainState: everything that the next step and the next line of the log depend on.

All of it is in every checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.placement.layer_placement import variables_beside
from trainer.engine.graph.placement.step_devices import beside
from trainer.engine.graph.state.variables import LossScale, replicated, split_alike
from trainer.errors import ConfigError
from trainer.protocols import CallbackDefaults, OptimizerDefaults, Task, with_defaults
from trainer.text import did_you_mean

if TYPE_CHECKING:
    from trainer.engine.graph.step.update_check import DivergenceMonitor

_BIT = 1 << 6  # of the last byte but one: the highest bit of a float32's fraction


class TrainState:
    """The one object that is saved.

    Created in `strategy.scope()`, complete before anything is restored. The input has no part in
    it: the order of samples is a function of the step.

    Attributes:
        divergence_monitor: the samples that are left out, and the losses that define a spike.
        last_reported_step: the last step whose evaluation and log lines are complete, int64; a run
            stopped within an evaluation repeats it.
        stopped_early: whether a callback has ended the training before its last step.
        summary_sums: metric sums and weights since the last summary, [2 * metrics] float64.
        epoch_sums: the same since the last end of an epoch.
        averages: for each model, the moving average of each trainable variable; empty without
            `ema_decay`.
        loss_scale: the state of mixed_float16's loss scale; None without.
        gradient_norm: the global norm of the gradient of the last sound update, before it was
            clipped, float32; 0 before the first. Steps that are handed out do not change it.
        frame_counts: what became of the frames of actors, [num_counts] int64; None without.
        repeated_steps: steps that were begun a second time because a worker was lost, int64; 0
            where steps are not handed out.

    Raises:
        ConfigError: models and optimizers of the task do not match, so that some would not be
            saved.
    """

    def __init__(
        self,
        task: Task,
        callbacks: Mapping[str, CallbackDefaults],
        divergence_monitor: DivergenceMonitor,
        *,
        num_sums: int,
        ema_decay: float | None,
        mixed_float16: bool,
        num_counts: int = 0,
    ) -> None:
        _check_names(task)
        self.task = task
        self.callbacks = callbacks
        self.divergence_monitor = divergence_monitor
        self.ema_decay = ema_decay
        self.step = replicated(tf.constant(0, tf.int64), "step")
        self.last_reported_step = replicated(tf.constant(0, tf.int64), "reported")
        self.stopped_early = replicated(tf.constant(False), "ended")
        self.summary_sums = replicated(tf.zeros([num_sums], tf.float64), "window")
        self.epoch_sums = replicated(tf.zeros([num_sums], tf.float64), "epoch")
        self.gradient_norm = replicated(tf.constant(0.0), "gradient_norm")
        self.repeated_steps = replicated(tf.constant(0, tf.int64), "repeated")
        self.frame_counts = (
            replicated(tf.zeros([num_counts], tf.int64), "frames") if num_counts else None
        )
        self.loss_scale = LossScale() if mixed_float16 else None
        self.averages: dict[str, list[tf.Variable]] = {}
        self._saved_optimizers: dict[str, Any] = {}
        self._saved_averages: dict[str, Any] = {}
        averaged: set[int] = set()
        for name, model in task.models.items():
            if name in task.optimizers:
                # Slots exist before the restore: a checkpoint that lacks one is then an error and
                # not a silent zero.
                task.optimizers[name]._create_all_weights(model.trainable_variables)
                self._saved_optimizers[name] = optimizer_trackables(
                    task.optimizers[name], model.trainable_variables
                )
            ids = set(map(id, model.trainable_variables))
            if ema_decay is not None and not ids <= averaged:  # not again those of a part of it
                averaged |= ids
                self.averages[name] = [
                    _average_of(variable) for variable in model.trainable_variables
                ]
                self._saved_averages[name] = split_alike(
                    self.averages[name], model.trainable_variables
                )

    def trackables(self) -> dict[str, Any]:
        """Return everything that is saved, by name."""
        return {
            "step": self.step,
            "reported": self.last_reported_step,
            "ended": self.stopped_early,
            "window": self.summary_sums,
            "epoch": self.epoch_sums,
            "gradient_norm": self.gradient_norm,
            "repeated": self.repeated_steps,
            "models": dict(self.task.models),
            "optimizers": self._saved_optimizers,
            "averages": self._saved_averages,
            "frames": {} if self.frame_counts is None else {"counts": self.frame_counts},
            "guard": self.divergence_monitor.trackables(),
            "loss_scale": {} if self.loss_scale is None else dict(vars(self.loss_scale)),
            "callbacks": {name: _variables(callback) for name, callback in self.callbacks.items()},
        }

    def callback_variables(self) -> list[tf.Variable]:
        return [x for callback in self.callbacks.values() for x in _variables(callback).values()]

    def digests(self, strategy: tf.distribute.Strategy) -> dict[str, int]:
        """Return a hash of every variable as this process holds it, 40 bits each, by name."""
        return digests(self.variables(), strategy)

    def variables(self) -> dict[str, tf.Variable]:
        """Return every variable, shards one by one, by name."""
        averages = {name: dict(enumerate(group)) for name, group in self.averages.items()}
        return named_variables(
            {**self.trackables(), "optimizers": self.task.optimizers, "averages": averages}
        )

    def update_averages(self, step: tf.Tensor, dropped: tf.Tensor) -> None:
        """Move the averages toward the weights, in replica context, after an update of step `step`.

        average += (1 - d) * (weight - average) with d = min(decay, (1 + step) / (10 + step)), so
        that a young average is not held back by the initial weights (the rule of
        tf.train.ExponentialMovingAverage).
        """
        if self.ema_decay is None:
            return
        step = tf.cast(step, tf.float32)
        decay = tf.where(dropped, 1.0, tf.minimum(self.ema_decay, (1.0 + step) / (10.0 + step)))
        for average, variable in self._averaged():
            with beside(variable):
                average.assign_add((1.0 - decay) * (variable - average))

    def reset_averages(self) -> None:
        """Set the averages to the weights, in cross-replica context."""
        for average, variable in self._averaged():
            average.assign(variable.read_value())

    def finish(self) -> None:
        """Give the weights the values that they have after the training, in cross-replica context.

        Keras' own optimizers may keep averages that replace the weights then (`use_ema`).
        """
        for optimizer in self.task.optimizers.values():
            with_defaults(optimizer, OptimizerDefaults).finish()

    def swap_averages(self) -> None:
        """Exchange weights and averages, in cross-replica context.

        Called before and after an evaluation, and before an export.
        """
        for average, variable in self._averaged():
            value = variable.read_value()
            variable.assign(average.read_value())
            average.assign(value)

    def _averaged(self) -> Iterator[tuple[tf.Variable, tf.Variable]]:
        for name, averages in self.averages.items():
            yield from zip(averages, self.task.models[name].trainable_variables, strict=True)


def named_variables(trackables: Mapping[str, Any]) -> dict[str, tf.Variable]:
    """Return every variable of nested mappings, models and optimizers, by name."""
    result: dict[str, tf.Variable] = {}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, Mapping):
            for key, value in node.items():
                walk(value, f"{name}/{key}" if name else str(key))
        elif isinstance(node, tf.Variable) or not hasattr(node, "variables"):
            result[name if name not in result else f"{name} ({len(result)})"] = node
        else:
            variables = node.variables() if callable(node.variables) else node.variables
            walk({variable.name: variable for variable in variables}, name)

    walk(trackables, "")
    return result


def digests(
    variables: Mapping[str, tf.Variable], strategy: tf.distribute.Strategy
) -> dict[str, int]:
    """Return a hash of each variable as this process holds it, 40 bits, by name."""
    local = {
        name: strategy.experimental_local_results(variable)[0]
        for name, variable in variables.items()
    }
    return {
        name: int.from_bytes(hashlib.sha256(value.numpy().reshape(-1).view("u1")).digest()[:5])
        for name, value in local.items()
    }


def _average_of(variable: tf.Variable) -> tf.Variable:
    with variables_beside(variable):
        # In a checkpoint the name shows what it is the average of.
        name = variable.name.removesuffix(":0")
        return replicated(variable.read_value(), f"{name}/average")


def _check_names(task: Task) -> None:
    """Check that each optimizer belongs to one model, and each model to one name."""
    problems = [
        f"task: optimizers has {name}, which is the name of no model; an optimizer has the name of "
        f"the model that it updates: {', '.join(task.models)}{did_you_mean(name, task.models)}"
        for name in task.optimizers
        if name not in task.models
    ]
    for kind, objects, fix in (
        ("models", task.models, "give each model one name"),
        ("optimizers", task.optimizers, "call parts.optimizer() for each model"),
    ):
        problems += [
            f"task: {kind} has the same object as {first} and as {second}; {fix}"
            for first, second in combinations(objects, 2)
            if objects[first] is objects[second]
        ]
    if problems:
        raise ConfigError(*problems)


def optimizer_trackables(
    optimizer: tf.keras.optimizers.legacy.Optimizer, variables: list[tf.Variable]
) -> dict[str, Any]:
    """Return an optimizer's variables as they are saved.

    Not by Keras' own tracking of slots: it creates the slots of split variables again whenever they
    are requested, and then misses them.
    """
    slots = {slot: _slots(optimizer, slot, variables) for slot in optimizer.get_slot_names()}
    in_slots = {id(slot) for group in slots.values() for slot, _ in group}
    return {
        "slots": {
            name: split_alike(*zip(*group, strict=True)) for name, group in slots.items() if group
        },
        "others": [variable for variable in optimizer.variables() if id(variable) not in in_slots],
    }


def _slots(
    optimizer: tf.keras.optimizers.legacy.Optimizer, name: str, variables: list[tf.Variable]
) -> list[tuple[tf.Variable, tf.Variable]]:
    """Return the slots of a name, each with its variable; not every variable need have one."""
    slots = []
    for variable in variables:
        with suppress(KeyError):
            slots.append((optimizer.get_slot(variable, name), variable))
    return slots


def _variables(owner: CallbackDefaults) -> dict[str, tf.Variable]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, tf.Variable)}


def flip_bit(state: TrainState, strategy: tf.distribute.Strategy) -> None:
    """Rehearse silent corruption: flip a bit of the largest variable in this process's last copy.

    It is one of the largest weight, because a kernel may take a tiny one for zero.
    """
    weights = next(iter(state.task.models.values())).trainable_variables
    variable = max(weights, key=lambda weight: weight.shape.num_elements())
    local = strategy.experimental_local_results(variable)[-1]
    value = np.array(local.numpy())
    flat = value.reshape(-1)
    position = int(np.argmax(np.abs(flat)))
    flat.view(np.uint8).reshape(flat.size, -1)[position, -2] ^= _BIT
    local.assign(value)
