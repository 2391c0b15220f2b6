"""Keras programs: a model, of either Keras, by its own loss, metrics, optimizer and steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import tensorflow as tf

from trainer.config.directions import of_keras_name
from trainer.engine.evaluation.evaluator import Evaluator, NoEvaluator
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.step.part_variables import own_values
from trainer.errors import ConfigError
from trainer.protocols import Batch, Metrics, PerExample, StepContext, TaskParts
from trainer.tasks.keras import compiled_optimizer
from trainer.tasks.keras.compiled import (
    Compiled,
    compiled_with,
    has_call,
    library_of,
    own_steps,
    undecorated,
)
from trainer.tasks.keras.objective import Objective, objective_of
from trainer.tasks.keras.own_steps import OwnSteps, VariableGroup
from trainer.tasks.keras.part_metrics import added_metrics
from trainer.tasks.keras.served_parts import served_parts
from trainer.tasks.keras.source_checks import check_source
from trainer.tasks.keras.whole_split import evaluator_of

_TRAINS = {"train_step", "compute_loss"}
_TESTS = {"test_step", "compute_loss"}


class Keras:
    """Trains a Keras model as `fit` does.

    What a model was compiled with counts unless an option says otherwise: loss and its weights,
    metrics, and the optimizer, made the fused one of the same name. A model's own `train_step`,
    `test_step` and `compute_loss` run as they are written.

    Args:
        loss: a loss by Keras' name, or a node with `_target_`; of several outputs a dict or a list.
        loss_weights: how much the loss of each output counts, likewise.
        metrics: metrics by Keras' names or as nodes: a list, or a dict by output.
        class_weights: number of a class -> how much the loss of its examples counts in training.
        from_logits: whether cross-entropies take logits; auto: of the outputs of a linear layer.
    """

    def __init__(
        self,
        *,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        class_weights: dict[int, float] | None = None,
        from_logits: bool | Literal["auto"] = "auto",
    ) -> None:
        self._options = Compiled(loss, loss_weights, metrics)
        self._class_weights = class_weights or {}
        self._from_logits = None if from_logits == "auto" else from_logits
        self.metrics: tuple[str, ...] = ("loss",)
        self.models: dict[str, Any] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}
        self.label_kind: Any = None
        self.direction: dict[str, str] = {}
        self.objective: Objective | None = None
        self._own: OwnSteps | None = None
        self._added: list[Any] = []
        self._own_train: list[str] = []
        self._own_test: list[str] = []
        self._one_sided: set[str] = set()
        self._by_attribute: dict[str, Any] = {}

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizers, and read what it was compiled with.

        Raises:
            ConfigError: there is no loss, or a step of its own cannot be run in a graph.
        """
        model = parts.model()
        own = getattr(model, "keras_model", model)  # the user's, of Keras 3
        compiled = compiled_with(own)
        steps = own_steps(own)
        self.models = {"model": model}
        if steps:
            check_source(undecorated(own, name) for name in steps)
            self._refuse_unused(steps)
            self._own = OwnSteps(model, own, library_of(own))
        if self._own and steps.keys() & _TRAINS:
            self._own_train = self._build_own(self._own, parts)
        else:
            self.optimizers = {
                "model": compiled_optimizer.build(
                    parts, compiled.optimizer, weights=own.trainable_variables
                )
            }
            self._added = added_metrics(own)
        if self._own and steps.keys() & _TESTS:
            self._own_test = self._own.trial("test_step", parts.batch_specs).names
        if not (self._own_train and self._own_test):
            self.objective = self._make_objective(own, compiled, parts)
        by_loss = self.objective.metric_names if self.objective else ()
        added = [metric.name for metric in self._added]
        sides = self._own_train or [*by_loss, *added], self._own_test or by_loss
        self.metrics = tuple(dict.fromkeys(["loss", *sides[0], *sides[1]]))
        self._one_sided = (set(sides[0]) ^ set(sides[1])) - {"loss"}
        self.label_kind = parts.label_kind if self.objective else None
        if not has_call(own):
            vars(self).update(predict_step=None, serve=partial(served_parts, own))
        self.direction = {name: way for name in self.metrics if (way := of_keras_name(name))}
        if self.objective:
            self.direction |= self.objective.directions

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch, or what the model's own step makes."""
        if self._own_train:
            assert self._own is not None
            sums = self._own.train(batch, step, self._by_attribute, self._own_train)
        else:
            sums = step.minimize(
                lambda part: self._loss(part, training=True),
                batch,
                self.models["model"],
                self.optimizers["model"],
            )
        zero = tf.constant(0.0)
        return {**dict.fromkeys(self.metrics, (zero, zero)), **sums}

    def eval_step(self, batch: Batch) -> PerExample:
        """Return the loss and the metrics of each example, [B]."""
        if self._own_test:
            assert self._own is not None
            losses, metrics = self._own.evaluate(batch, self._own_test)
        else:
            losses, metrics = self._loss(batch, training=False)
        zeros = tf.zeros_like(losses)
        return losses, {**dict.fromkeys(self.metrics[1:], (zeros, zeros)), **metrics}

    def derive_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics, without those that training or evaluation alone has."""
        return {
            name: value
            for name, value in metrics.items()
            if name not in self._one_sided or not math.isnan(value)
        }

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the outputs by name, [B, ...]; of a single one what fits the labels.

        `probabilities`, [B, classes], where the labels are classes, and `prediction` where they are
        numbers.
        """
        outputs = self.call(batch, training=False)
        if self.objective is None:
            flat = tf.nest.flatten(outputs)
            return {f"output_{i + 1}": value for i, value in enumerate(flat)}
        return self.objective.predictions(outputs, self.label_kind)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        """Return what evaluates a split: means by the examples, all other metrics at once."""
        if not self._own_test and self.objective is None:
            return NoEvaluator()
        return evaluator_of(self, inference, source, predictor)

    def call(self, batch: Batch, *, training: bool) -> Any:
        """Return what the model makes of a batch."""
        return self.models["model"](batch["features"], training=training)

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        assert self.objective is not None
        with own_values():
            outputs = self.call(batch, training=training)
            losses, metrics = self.objective.per_example(batch, outputs, training=training)
            # An evaluation cannot leave out of them what a batch is filled up with.
            added = self._added if training else ()
            own = {
                m.name: tf.fill([losses.shape[0]], tf.cast(m.result(), tf.float32)) for m in added
            }
        return losses, {**metrics, **own}

    def _build_own(self, steps: OwnSteps, parts: TaskParts) -> list[str]:
        """Create the optimizers that the model's own step updates with; return its metrics."""
        trial = steps.trial("train_step", parts.batch_specs)
        model = self.models["model"]
        used = [name for name in steps.proxies if trial.count(name)]
        whole = {id(v) for v in model.trainable_variables}
        for name in used:
            variables = trial.variables(name)
            key = "model" if {id(v) for v in variables} == whole else name
            if key != "model":
                self.models[key] = VariableGroup(variables, name)
            self.optimizers[key] = self._by_attribute[name] = compiled_optimizer.build(
                parts,
                steps.proxies[name].original,
                name if len(used) > 1 else "optimizer",
                trial.count(name),
                getattr(model, "keras_model", model).trainable_variables,
            )
            steps.proxies[name].updating = self.optimizers[key]
        return trial.names

    def _refuse_unused(self, steps: Collection[str]) -> None:
        """Refuse options that a model's own steps do not read.

        Raises:
            ConfigError: one is set.
        """
        trains, tests = not _TRAINS.isdisjoint(steps), not _TESTS.isdisjoint(steps)
        unused = {"class_weights": self._class_weights} if trains else {}
        if trains and tests:
            unused |= vars(self._options)
        for name, value in unused.items():
            if value:
                raise ConfigError(
                    f"task.{name} ({value}) is not used: the model's own {', '.join(steps)} "
                    f"decides; leave it out"
                )

    def _make_objective(self, own: Any, compiled: Compiled, parts: TaskParts) -> Objective | None:
        options = {name: x for name, x in vars(self._options).items() if x is not None}
        arguments = replace(compiled, **options)
        if arguments.loss is None and self._own_train:
            return None  # its own steps are all that it has
        return objective_of(
            own, arguments, options.keys(), parts, self._class_weights, self._from_logits
        )
