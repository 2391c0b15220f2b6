"""Keras programs: a model, of either Keras, by its own loss, metrics, optimizer and steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from trainer.config.directions import of_keras_name
from trainer.engine.evaluation.evaluator import Evaluator, Predictor
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.randomness.draws import convert_draws
from trainer.engine.graph.step.assignments import moving_variables
from trainer.errors import ConfigError
from trainer.protocols import (
    STATES,
    Batch,
    Dataset,
    Metrics,
    PartLoss,
    Sampling,
    Served,
    StepContext,
    TaskParts,
)
from trainer.tasks.keras import optimizers
from trainer.tasks.keras.own_steps import OwnSteps, VariableGroup, names_of
from trainer.tasks.keras.program import NO_LOSS, Pass, Program, num_examples
from trainer.tasks.keras.task_loss import (
    class_weighted,
    logits_of,
    loss_of_names,
    masks_of,
    predictions,
    rows_times,
    with_attributes,
)
from trainer.tasks.keras.trial import Kind, Kinds, kinds_of, spread, trial_batch
from trainer.tasks.keras.user_model import (
    Compiled,
    check_source,
    compiled_with,
    has_call,
    is_compiled,
    library_of,
    own_steps,
    undecorated,
)

_log = logging.getLogger(__name__)

_TRAINS = {"train_step", "compute_loss"}
_TESTS = {"test_step", "compute_loss"}


@dataclass
class _Side:
    """What training or evaluation reports: the names of values, in order; `loss` may be missing."""

    names: Sequence[str] = ()
    kinds: Kinds = field(default_factory=Kinds)


class Keras:
    """Trains a Keras model as `fit` does.

    What a model was compiled with counts unless an option replaces it: loss and its weights,
    metrics, and the optimizer, made the fused one of the same name. A model's own `train_step`,
    `test_step`, `compute_loss` and `compute_metrics` run as they are written.
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
        self.derived_metrics: Sequence[str] = ()
        self.num_states = 0
        self.models: dict[str, Any] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}
        self.label_kind: Any = None
        self.direction: dict[str, str] = {}
        self._own: OwnSteps | None = None
        self._has_weights = False
        self._by_attribute: dict[str, Any] = {}
        self._train = _Side()
        self._test: _Side | None = None

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizers, and read what it was compiled with."""
        model = parts.model()
        own = getattr(model, "keras_model", model)  # the user's, of Keras 3
        library = library_of(own)
        compiled = compiled_with(own)
        self.models = {"model": model}
        self._has_weights = parts.has_weights
        self._refuse_unused(own_steps(own))
        self._compile(own, compiled, parts)
        if not is_compiled(own) and _TRAINS.isdisjoint(own_steps(own)):
            raise ConfigError(NO_LOSS)
        evaluates = parts.test_specs is not None
        self._program = program = Program(
            model, own, library, parts.batch_specs, evaluates=evaluates
        )
        steps = program.steps
        check_source(undecorated(own, name) for name in steps)
        if "train_step" in steps:
            self._own = OwnSteps(
                program, compiled.optimizer, partial(class_weighted, weights=self._class_weights)
            )
            self._train = self._build_own(self._own, parts)
        else:
            self.optimizers = {
                "model": optimizers.build(
                    parts, compiled.optimizer, weights=own.trainable_variables
                )
            }
            self._train = self._default_side(parts.batch_specs)
        if "test_step" in steps:
            if (specs := parts.test_specs) is not None:
                self._test = _Side(names_of(self._tested, specs))
        elif "train_step" not in steps or (
            evaluates and (compiled_with(own).loss is not None or _TESTS & {*steps})
        ):
            self._test = self._default_side(parts.batch_specs)
        self._find_logs()
        tests = () if self._test is None else self._test.names
        self.derived_metrics = list(dict.fromkeys(["loss", *self._train.names, *tests]))
        self.num_states = 2 + program.states.size
        self.label_kind = parts.label_kind if compiled_with(own).loss is not None else None
        if not has_call(own):
            vars(self).update(predict_step=None, serve=partial(_serve_components, own))
        self.direction = program.states.directions(of_keras_name)
        self.direction |= {name: way for name in self.metrics if (way := of_keras_name(name))}
        if parts.num_parts > 1:
            self._try(parts)
        elif program.states.has_own:
            with suppress(ConfigError):  # of a program that cannot be computed in parts
                self._try(parts)

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        batch = class_weighted(batch, self._class_weights)
        if self._own is not None:
            made = self._own.train(batch, step, self._by_attribute, self._train.kinds)
            return self._sums(self._train, made, num_examples(batch) * step.num_replicas, 0)
        batch = self._weighted(batch)
        size = num_examples(batch) * step.num_replicas
        if self._train.kinds.needs_whole and step.num_parts > 1:
            return self._train_on_whole(batch, step, size)

        def loss_fn(part: Batch) -> PartLoss:
            made = self._program.compiled(part, training=True)
            share = num_examples(part) / size
            return PartLoss(
                _scaled(made.objective, self._train.kinds.objective, share),
                self._sums(self._train, made, num_examples(part), 0, share),
            )

        return step.minimize(loss_fn, batch, self.models["model"], self.optimizers["model"])

    def eval_part(self, batch: Batch, step: Any, share: float, states: tf.Tensor) -> Metrics:
        """Return what a fraction (`share`) of an evaluated batch adds to the evaluation."""
        assert self._test is not None
        kinds = self._test.kinds
        carried = [kind == "carried" for kind in kinds.states]
        begin = states[2:] * self._program.states.spread(carried) if any(carried) else None

        def made_of(batch: Batch) -> Pass:
            if begin is None:
                return self._tested(batch)
            with self._program.states.beginning(begin):
                made = self._tested(batch)
            return replace(made, states=made.states - begin)

        if share == 1.0 or not kinds.needs_whole:
            return self._sums(self._test, made_of(batch), num_examples(batch), 1, share)
        made = made_of(_gathered(step, batch))
        sums = self._sums(self._test, made, num_examples(batch) * step.num_replicas, 1)
        # All replicas have computed the same.
        is_first = tf.cast(tf.equal(step.replica, 0), tf.float32)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32) * is_first, sums)

    def reported(self, metrics: Mapping[str, float], states: np.ndarray) -> dict[str, float]:
        """Return the values that training or evaluation reports, under Keras' names."""
        is_test = states[0] == 0.0 and states[1] > 0.0
        side = (self._test if is_test else self._train) or self._train
        values = {**metrics, **self._program.states.results(states[2:])}
        if values["loss"] == 0.0:  # a `compute_loss` of the model's that tracks none
            values["loss"] = metrics["loss"]
        if not states[:2].any():
            values = dict.fromkeys(values, float("nan"))
        names = dict.fromkeys(["loss", *side.names])
        return {name: values[name] for name in names}

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the outputs by name, [B, ...]; of a single one what fits the labels.

        `probabilities`, [B, classes], where the labels are classes, and `prediction` where they are
        numbers.
        """
        outputs = self.models["model"](batch["features"], training=False)
        return predictions(self._program.own, outputs, self.label_kind)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        """Return what evaluates a split in batches of the training's size, as `fit` does."""
        if self._test is None:
            return Evaluator()
        if "carried" in self._test.kinds.states and not inference.loops.in_sequence:
            raise ConfigError(
                "model: a metric cannot be added up over batches (such as a maximum), and workers "
                "of strategy=parameter_server evaluate these in any order; leave it out of compile"
            )
        batch = replace(source, per_replica=inference.global_size // source.num_replicas)
        # What is computed at a time: a replica's batch, or a shard; or all of a batch.
        size = batch.global_size if self._test.kinds.needs_whole else source.per_replica
        of_rows = inference.configured_metrics(predictor)
        return inference.split_evaluator(batch, of_rows, part_size=size)

    def _compile(self, own: Any, compiled: Compiled, parts: TaskParts) -> None:
        """Compile a model with the options, in place of what it was compiled with."""
        chosen = {name: x for name, x in vars(self._options).items() if x is not None}
        if not chosen:
            return
        arguments = replace(compiled, **chosen)
        if "metrics" in chosen:
            arguments = replace(arguments, weighted_metrics=None)
        if "loss" in chosen:
            loss = loss_of_names(own, arguments.loss, self._from_logits, parts.feature_specs)
            arguments = replace(arguments, loss=loss)
        options = vars(arguments)
        library_of(own).Model.compile(own, options.pop("optimizer") or "sgd", **options)
        if compiled.optimizer is None:
            own.optimizer = None

    def _default_side(self, specs: Mapping[str, Any]) -> _Side:
        """Return what Keras' own step reports: its metrics, and what `compute_metrics` adds."""
        program = self._program
        if not program.has_own_metrics:
            return _Side(program.states.names())
        return _Side(names_of(partial(program.compiled, training=False), specs))

    def _find_logs(self) -> None:
        """Find what steps return in addition to the values of metrics: means over the batches."""
        held = {"loss", *self._program.states.names()}
        logs: list[str] = []
        for side in filter(None, (self._train, self._test)):
            own = [name for name in side.names if name not in held]
            side.kinds = Kinds(logs=dict.fromkeys(own, "mean"))
            logs += own
        self.metrics = tuple(dict.fromkeys(["loss", *logs]))

    def _weighted(self, batch: Batch) -> Batch:
        """Return a batch in which unusable examples have the sample weight 0, if any may be."""
        if not self._has_weights:
            return batch
        weight, own = batch["weight"], batch.get("sample_weight")
        if own is not None:
            weight = tf.nest.map_structure(lambda x: rows_times(weight, x), own)
        return {**batch, "sample_weight": weight}

    def _tested(self, batch: Batch) -> Pass:
        if "test_step" in self._program.steps:
            return self._program.step("test_step", batch, tf.constant(0, tf.int64))
        batch = self._weighted(batch)
        return self._program.compiled(batch, training=False)

    def _sums(
        self, side: _Side, made: Pass, count: int, number: int, share: float = 1.0
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Return what a fraction of a batch adds to metrics; `number`: 0 in training, else 1."""
        weight = tf.constant(float(count))
        zero = tf.zeros([])
        numbers = {**made.logs, "loss": made.loss}
        kinds = {**side.kinds.logs, "loss": side.kinds.loss}
        sums = {
            name: (_scaled(numbers[name], kinds[name], share) * (count / share), weight)
            if name in kinds
            else (zero, zero)
            for name in self.metrics
        }
        states = made.states
        if "mean" in side.kinds.states:
            factors = [share if kind == "mean" else 1.0 for kind in side.kinds.states]
            states *= self._program.states.spread(factors)
        counts = [share if i == number else 0.0 for i in range(2)]
        return {**sums, STATES: (tf.concat([counts, states], axis=0), tf.zeros([0]))}

    def _train_on_whole(self, batch: Batch, step: StepContext, size: int) -> Metrics:
        """Make an update by a loss, or report a metric, that needs all examples of the batch.

        The outputs of all parts are gathered, and the loss is derived with respect to those of this
        replica; then each part is computed again, and its weights follow from these derivatives.
        """
        program = self._program

        def forward(part: Batch) -> dict[str, Any]:
            outputs, added = program.outputs(part, training=True)
            flat = tf.nest.flatten(outputs)
            known = {"logits": logits_of(flat), "masks": masks_of(flat)}
            return {"outputs": outputs, "added": added[None], **known}

        rows = num_examples(batch)
        own = step.forward(forward, batch, self.models["model"])
        taken = {"weight", "label", "sample_weight"}
        if program.has_own_loss or program.has_own_metrics:
            taken.add("features")
        kept = {name: x for name, x in batch.items() if name in taken}
        every = _gathered(step, {**own, **kept})
        flat = [tf.cast(x, tf.float32) for x in tf.nest.flatten(every["outputs"])]
        logits = every["logits"]
        read = [*flat, *tf.nest.flatten(logits)]
        whole = {"features": None, **{name: x for name, x in every.items() if name in taken}}
        with tf.GradientTape() as tape:
            tape.watch(read)
            flat = with_attributes(flat, every["masks"], logits)
            outputs = tf.nest.pack_sequence_as(every["outputs"], flat)
            added = tf.reduce_mean(every["added"])
            made = program.of_outputs(whole, outputs, added, training=True)
        weights = self.models["model"].trainable_variables if program.has_own_loss else []
        derivatives = tape.gradient(made.objective, [*read, *weights])
        if any(x is not None for x in derivatives[len(read) :]):
            raise ConfigError(
                f"model: {program.place_of('compute_loss')}: the loss is no mean over examples "
                "and reads weights, so no part of a batch can compute it; train it on one device, "
                "or compute what reads weights in call"
            )
        first = tf.cast(step.replica, tf.int32) * rows
        own_rows = [_rows(d, first, rows, x) for x, d in zip(read, derivatives, strict=False)]
        with_derivatives = {**batch, "derivatives": own_rows}

        def loss_fn(part: Batch) -> PartLoss:
            outputs, added = program.outputs(part, training=True)
            count = num_examples(part)
            flat = tf.nest.flatten(outputs)
            again = [*flat, *tf.nest.flatten(logits_of(flat))]
            pairs = zip(again, part["derivatives"], strict=True)
            products = [tf.reduce_sum(tf.cast(x, tf.float32) * d) for x, d in pairs]
            loss = tf.add_n(products) + added * (count / size)
            return PartLoss(loss, {"loss": (made.loss * float(count), tf.constant(float(count)))})

        model, optimizer = self.models["model"], self.optimizers["model"]
        step.minimize(loss_fn, with_derivatives, model, optimizer)
        return self._sums(self._train, made, size, 0)

    def _try(self, parts: TaskParts) -> None:
        """Find how the numbers of a batch follow from those of its shards."""
        model, program = self.models["model"], self._program
        convert_draws()
        size = parts.batch_specs["weight"].shape[0]
        examples = trial_batch(parts.examples, size)

        own = self._own
        moving = moving_variables(model) if own is None else []  # which keeps what it assigns

        def kinds(side: _Side, run: Callable[[Batch], Any]) -> Kinds:
            logs = list(side.kinds.logs)
            batch = examples
            if side is self._test and parts.test_specs is not None:
                batch = trial_batch(partial(parts.examples, of_test=True), size)
            if num_examples(batch) < 2:
                return side.kinds
            return kinds_of(run, model, moving, batch, program.states, logs)

        def run_default(batch: Batch) -> tuple[Pass, tuple[()]]:
            return self._tried(class_weighted(batch, self._class_weights), training=True), ()

        run_train = run_default if own is None else own.tried
        self._train.kinds = kinds(self._train, run_train)
        self._leave_out_carried(parts)
        if own is not None and self._train.kinds.needs_whole and parts.num_parts > 1:
            raise ConfigError(
                f"model: {program.place_of('train_step')}: what train_step computes of a batch "
                "is neither the mean nor the sum of what it computes of equal shards of it "
                f"({self._train.kinds.describe(program.states)}), so it would be another "
                "training on several devices; use strategy=one_device without batch.shards and "
                "batch.accumulate"
            )
        if self._test is not None:
            runs_own = "test_step" in program.steps
            run = self._tested if runs_own else partial(self._tried, training=False)
            self._test.kinds = kinds(self._test, lambda batch: (run(batch), ()))

    def _tried(self, batch: Batch, *, training: bool) -> Pass:
        """Compute loss and metrics in a trial, if Keras does, of outputs that are spread."""
        program, batch = self._program, self._weighted(batch)
        if program.has_own_loss or program.has_own_metrics:
            return program.compiled(batch, training=training)
        outputs, added = program.outputs(batch, training=training)
        return program.of_outputs(batch, spread(outputs, batch), added, training=training)

    def _leave_out_carried(self, parts: TaskParts) -> None:
        """Report no metric in training whose variables cannot be added up over steps."""
        side, states = self._train, self._program.states
        carried = states.spread([kind == "carried" for kind in side.kinds.states])
        if not carried.any():
            return
        values = states.results(np.where(carried > 0.0, np.nan, 1.0))
        left_out = [name for name, value in values.items() if np.isnan(value)]
        side.names = [name for name in side.names if name not in left_out]
        kinds: list[Kind] = ["sum" if x == "carried" else x for x in side.kinds.states]
        side.kinds = replace(side.kinds, states=kinds)
        if parts.is_chief:
            _log.warning(
                "model: %s cannot be added up over steps, so training does not report it; "
                "evaluations do",
                ", ".join(left_out),
            )

    def _build_own(self, steps: OwnSteps, parts: TaskParts) -> _Side:
        """Create the optimizers that the model's own step updates with; return what it reports."""
        names, updates = steps.trial(parts.batch_specs)
        model = self.models["model"]
        used = {update.name for update in updates}
        whole = {id(v) for v in model.trainable_variables}
        for name, proxy in steps.proxies.items():
            if name not in used:
                continue
            own = [update for update in updates if update.name == name]
            variables = {id(v): v for update in own for v in update.variables}
            key = "model" if variables.keys() == whole else name
            if key != "model":
                self.models[key] = VariableGroup(list(variables.values()), name)
            self.optimizers[key] = self._by_attribute[name] = proxy.updating = optimizers.build(
                parts,
                proxy.original,
                name if len(used) > 1 else "optimizer",
                len(own),
                getattr(model, "keras_model", model).trainable_variables,
            )
        return _Side(names)

    def _refuse_unused(self, steps: Collection[str]) -> None:
        """Refuse options that a model's own steps do not read."""
        if _TRAINS.isdisjoint(steps) or _TESTS.isdisjoint(steps):
            return
        for name, value in vars(self._options).items():
            if value:
                raise ConfigError(
                    f"task.{name} ({value}) is not used: the model's own {', '.join(steps)} "
                    f"decides; leave it out"
                )


def _scaled(value: tf.Tensor, kind: str, share: float) -> tf.Tensor:
    """Return what a part's value adds to that of the batch."""
    return value * share if kind == "mean" and share != 1.0 else value


def _gathered(step: Any, batch: Any) -> Any:
    """Return a nest of tensors, [B, ...], of all replicas, in their order."""
    if step.num_replicas == 1:
        return batch
    texts = [x for x in tf.nest.flatten(batch) if x.dtype == tf.string]
    if texts:
        raise ConfigError(
            "model: its loss or a metric needs all examples of a batch together, and replicas "
            "cannot exchange texts; turn them into numbers in the dataset, or use one device"
        )
    return step.gather_rows(batch)


def _rows(
    derivatives: tf.Tensor | None, first: tf.Tensor, count: int, outputs: tf.Tensor
) -> tf.Tensor:
    """Return `count` rows from `first` on; zeros if nothing was derived from the outputs."""
    if derivatives is None:
        return tf.zeros_like(outputs[:count])
    # Behind a snapshot: what is computed of the slice must not be computed of the whole.
    rows = tf.ensure_shape(derivatives[first : first + count], [count, *outputs.shape[1:]])
    return tf.raw_ops.Snapshot(input=rows)


_FIRST = ("decoder", "generator", "student")
"""Attributes that hold what a model without `call` is trained for."""


def _serve_components(model: Any, dataset: Dataset, sampling: Sampling) -> Served:
    """Return a function for each model in an attribute of one that cannot be called itself."""
    components = {
        name: value
        for name, value in vars(model).items()
        if not name.startswith("_") and callable(value) and getattr(value, "inputs", None)
    }
    if not components:
        raise ConfigError(
            f"mode (export): {type(model).__name__} has no call, and no attribute that is a model "
            "with inputs; add a call to it"
        )
    functions = {name: _served(component) for name, component in components.items()}
    first = next((name for name in _FIRST if name in functions), next(iter(functions)))
    return Served({"serving_default": functions[first], **functions})


def _served(component: Any) -> Any:
    specs = [
        tf.TensorSpec([None, *x.shape[1:]], tf.as_dtype(x.dtype), f"input_{i + 1}")
        for i, x in enumerate(component.inputs)
    ]

    def outputs(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.nest.flatten(component(list(inputs) if len(inputs) > 1 else inputs[0]))
        return {f"output_{i + 1}": value for i, value in enumerate(values)}

    return tf.function(outputs, autograph=False).get_concrete_function(*specs)
