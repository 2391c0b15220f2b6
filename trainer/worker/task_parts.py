"""What a task is built from: models, and optimizers with their learning rates.

A model may be of either Keras: Keras 3 is imported only if the function that makes it imports it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.config.instantiate import import_target, instantiate, instantiate_model
from trainer.config.schema import ENGINE_KEYS, Experiment
from trainer.engine.adapted_layers import AdaptedLayers
from trainer.engine.graph.input.feature_specs import (
    batch_specs,
    feature_specs,
    has_weights,
    model_arguments,
)
from trainer.engine.graph.step.grouped_optimizer import GroupedOptimizer, GroupRules
from trainer.engine.graph.step.step_options import fused_class
from trainer.engine.plan import Plan
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.protocols import (
    Batch,
    Dataset,
    DatasetDefaults,
    EnvSpec,
    LoopDefaults,
    ModelNode,
    OptimizerDefaults,
    OptimizerNode,
    ScheduleNode,
    Split,
    SplitDefaults,
    Stream,
    label_kind_of,
    with_defaults,
)
from trainer.schedules.schedule import adjust, of_steps, scale, slow_down
from trainer.tasks.keras.user_model import own_steps
from trainer.worker.error_summary import error_cause

if TYPE_CHECKING:
    import keras

_KERAS_TASK = "trainer.tasks.keras."

_log = logging.getLogger(__name__)

Schedule: TypeAlias = Callable[[Any], Any]
"""The learning rate, float32 scalar, of a step, int64 scalar."""


@dataclass(eq=False, repr=False)
class Parts:
    """Builds what a task requests; see `trainer.protocols.TaskParts`.

    Attributes:
        learning_rates: the learning rate of each optimizer that was built, by its name in the log.
    """

    experiment: Experiment
    dataset: Dataset
    _: KW_ONLY
    plan: Plan
    callbacks: Mapping[str, Any]
    process_group: ProcessGroup
    num_parts: int
    adapted: AdaptedLayers

    def __post_init__(self) -> None:
        self.worker = self.process_group.index
        self.num_workers = self.process_group.count
        self.is_chief = self.process_group.is_chief
        self.label_kind = label_kind_of(self.dataset)
        self._own: set[str] = set()  # groups of which the task has nodes
        self._used: set[str] = set()  # groups whose choice it uses
        self._models: list[tuple[str, Any, str]] = []  # key, and why it could not be called
        self.learning_rates: dict[str, Schedule] = {}

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.dataset.input_shape

    @property
    def class_counts(self) -> Sequence[int]:
        labels = with_defaults(self.dataset.train, SplitDefaults).labels
        if labels is None or self.label_kind != "class":
            raise ConfigError(
                "the dataset cannot count the examples of each class without reading all of them"
            )
        return np.bincount(labels, minlength=self.num_classes).tolist()

    @property
    def target_scale(self) -> Sequence[tuple[float, float]] | None:
        return with_defaults(self.dataset, DatasetDefaults).target_scale

    @property
    def feature_specs(self) -> Any:
        return feature_specs(self.dataset)

    @property
    def batch_specs(self) -> Mapping[str, Any]:
        return batch_specs(self.dataset, self.plan.epochs.global_size)

    @property
    def test_specs(self) -> Mapping[str, Any] | None:
        if not self._evaluated.num_examples:
            return None
        return batch_specs(self.dataset, self.plan.epochs.global_size, self._evaluated)

    @property
    def _evaluated(self) -> Split:
        validation = with_defaults(self.dataset, DatasetDefaults).validation
        return self.dataset.test if validation is None else validation

    @property
    def has_weights(self) -> bool:
        return has_weights(self.dataset)

    def examples(self, count: int, *, of_test: bool = False) -> Batch:
        split = self._evaluated if of_test else self.dataset.train
        if isinstance(split, Stream):
            batch = dict(next(iter(split.stream().batch(count))))
            numbers = range(len(tf.nest.flatten(batch)[0]))
        else:
            step = max(1, split.num_examples // count)
            numbers = range(0, split.num_examples, step)[:count]
            batch = dict(split.fetch(tf.constant(list(numbers), tf.int64)))
        batch |= {"id": tf.constant(list(numbers), tf.int64), "weight": tf.ones([len(numbers)])}
        return {**batch, **self.dataset.transform(batch, None)}

    @property
    def has_optimizer(self) -> bool:
        return self.experiment.optimizer is not None

    @property
    def env(self) -> EnvSpec | None:
        return with_defaults(self.dataset, LoopDefaults).env

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    @property
    def num_outputs(self) -> int:
        declared = (self.experiment.model or {}).get("outputs")
        return declared or self.num_classes

    def model(
        self,
        node: ModelNode | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        outputs: int | tuple[int, ...] | None = None,
    ) -> tf.keras.Model:
        key, options = self._node(node, "model")
        self._check_vocabulary(key, options.get("vocabulary"))
        arguments = model_arguments(self.dataset, input_shape, outputs)

        def build() -> Any:
            with self.adapted.restored():
                return instantiate_model(options, key, arguments)

        model, failure = build_model(build, key, options, arguments["features"], self.experiment)
        self._models.append((key, model, failure))
        return model

    def check_models(self) -> None:
        """Check that the models are built, by the task if it calls them otherwise."""
        for key, model, failure in self._models:
            # A call that fails leaves the model itself built.
            if failure and not (model.variables and all(x.built for x in model._flatten_layers())):
                raise _not_built(key, model, failure)

    def optimizer(
        self,
        node: OptimizerNode | None = None,
        *,
        schedule: ScheduleNode | Schedule | None = None,
        updates_per_step: int = 1,
        make: Callable[[Schedule], Any] | None = None,
    ) -> tf.keras.optimizers.legacy.Optimizer:
        key, options = self._node(node, "optimizer")
        rate = self._learning_rate(options["learning_rate"], schedule)
        by_updates = schedule is not None and not isinstance(schedule, ScheduleNode)
        shown = of_steps(rate, updates_per_step) if by_updates else rate
        self.learning_rates["learning_rate" + ("" if node is None else f"/{node.name}")] = shown

        def member(own: Mapping[str, Any], factor: float) -> Any:
            peak = own.get("learning_rate")
            followed = rate if peak is None else self._learning_rate(peak, schedule)
            if not by_updates:
                followed = slow_down(followed, updates_per_step)
            scaled = scale(followed, factor)
            return _optimizer({**options, **own}, key, scaled) if make is None else make(scaled)

        groups = options.get("groups") or {}
        decay = options.get("layer_decay")
        if groups or decay is not None:
            optimizer = GroupedOptimizer(GroupRules(key, groups, decay), member)
        else:
            optimizer = member({}, 1.0)
        optimizer.updates_per_step = updates_per_step
        return optimizer

    def _check_vocabulary(self, key: str, vocabulary: int | None) -> None:
        """Refuse a model of fewer tokens than the dataset has: it would fail, or read nothing."""
        size = with_defaults(self.dataset, DatasetDefaults).vocabulary_size
        if size is not None and vocabulary is not None and vocabulary < size:
            raise ConfigError(
                f"{key}.vocabulary ({vocabulary}) must be >= {size}, the tokens of the dataset; "
                f"add {key}.vocabulary={size}"
            )

    def check_used(self) -> None:
        """Check that a task with its own model or optimizer uses the configured one, if any.

        Warns of what else of a model is not used.
        """
        choices = self.experiment.choices or {}
        problems = [
            f"{group} ({choices.get(group)}) is not used by task={choices.get('task')}, which has "
            f"its own; leave {group}=<choice> out, or add ~{group}"
            for group in ("model", "optimizer")
            if group in self._own - self._used and getattr(self.experiment, group) is not None
        ]
        if problems:
            raise ConfigError(*problems)
        for key, model, _ in self._models:
            if (
                choices.get("task") != "keras"
                and self.experiment.trains
                and self.is_chief
                and (parts := _unused_arguments(model))
            ):
                _log.warning(
                    "%s is compiled: %s are not used; task=%s, optimizer=%s and metrics= decide",
                    key, parts, choices.get("task"), choices.get("optimizer"),
                )  # fmt: skip

    def _node(
        self, node: ModelNode | OptimizerNode | None, group: str
    ) -> tuple[str, Mapping[str, Any]]:
        """Return the key and the options of a node, by default those of a group."""
        if node is not None:
            self._own.add(group)
            return node.key, node.options
        options = getattr(self.experiment, group)
        if options is None:
            raise ConfigError(f"{group} has no value, but the task needs one; add {group}=<choice>")
        self._used.add(group)
        return group, options

    def _learning_rate(self, peak: float, node: ScheduleNode | Schedule | None) -> Schedule:
        """Build a learning rate, adjusted by the callbacks that do so.

        It is scaled linearly with the batch if a reference batch is set (Goyal et al. 2017).
        """
        adjustments = [
            callback.adjust_learning_rate
            for callback in self.callbacks.values()
            if hasattr(callback, "adjust_learning_rate")
        ]
        if node is not None and not isinstance(node, ScheduleNode):
            chosen = (self.experiment.choices or {}).get("schedule", "constant")
            if chosen != "constant":
                raise ConfigError(
                    f"schedule ({chosen}) cannot be used with the model's own schedule "
                    f"({type(node).__name__}), which it was compiled with; leave schedule= out, or "
                    "add optimizer=<choice>"
                )
            return adjust(node, adjustments)
        key = "schedule" if node is None else node.key
        options = self.experiment.schedule if node is None else node.options
        if reference := options.get("reference_batch"):
            peak *= self.plan.epochs.global_size / reference
        schedule = instantiate(
            options,
            key,
            peak,
            self.plan.total_steps,
            self.plan.epochs.length,
            leave_out=("reference_batch",),
        )
        is_ours = options["_target_"].startswith("trainer.")
        if is_ours and schedule.warmup_steps > self.plan.total_steps:
            _log.warning(
                "%s: the warm-up takes %d steps, and the training %d: the learning rate does not "
                "reach its peak; add %s.warmup_steps=<fewer>",
                *(key, schedule.warmup_steps, self.plan.total_steps, key),
            )
        return adjust(schedule, adjustments)


def _optimizer(options: Mapping[str, Any], key: str, rate: Schedule) -> Any:
    optimizer = instantiate(options, key, rate, leave_out=tuple(ENGINE_KEYS["optimizer"]))
    _check_optimizer(key, optimizer)
    if options.get("lazy"):
        if not with_defaults(optimizer, OptimizerDefaults).can_be_lazy:
            raise ConfigError(
                f"{key}.lazy (true) updates only rows of a table, and this optimizer "
                f"({optimizer._name}) needs the whole table; remove it"
            )
        optimizer.lazy = True
    return optimizer


def build_model(
    build: Callable[[], Any],
    key: str,
    node: Mapping[str, Any],
    features: Any,
    experiment: Experiment,
) -> tuple[Any, str]:
    """Build a model; one of Keras 3 is wrapped in what the engine uses of a model.

    Args:
        key: the key of the node of the function that makes it.
        features: specification of a batch's features, a nest; a model without variables is called
            with such.

    Returns:
        The model, and why a model of tf_keras could not be called, if it has no variables yet.

    Raises:
        ConfigError: the model cannot be trained here.
    """
    import_target(node)  # and with it the Keras that it uses
    lora = experiment.train.lora
    _set_policy(experiment.precision)
    model = build()
    task = str((experiment.task or {}).get("_target_"))
    runs_steps = task.startswith(_KERAS_TASK) or not task.startswith("trainer.")
    check_model(model, key, node["_target_"], runs_steps=runs_steps)
    keras = sys.modules.get("keras")  # a function that loads a model from a file imports it then
    is_keras_3 = keras is not None and isinstance(model, keras.Layer)
    library: Any = keras if is_keras_3 else tf.keras
    failure = "" if getattr(model, "built", True) else _call_failure(model, library, features)
    if failure and runs_steps and _has_weights(model):
        # Its own steps call its layers, and not the model.
        model.built, failure = True, ""
    if not is_keras_3:
        if lora.rank is not None:
            raise ConfigError(
                f"train.lora.rank ({lora.rank}) needs a model of Keras 3, and {model.name} is of "
                "tf_keras; add train.lora.rank=null, or train some of its layers with train.freeze"
            )
        _forget_vocabularies(model)
        return model, failure
    from trainer.engine.graph.keras3.keras3_model import Keras3Model, add_adapters

    if failure:
        raise _not_built(key, model, failure)
    _check_keras3(model, experiment)
    if lora.rank is not None and model.built:
        add_adapters(model, lora.rank, lora.layers)
    return Keras3Model(model), ""


def _set_policy(precision: str) -> None:
    """Set the precision of Keras 3, if the model's module has imported it."""
    if keras := sys.modules.get("keras"):
        from trainer.engine.graph.keras3.keras3_model import refuse_remat

        keras.config.set_dtype_policy(precision)
        refuse_remat()


def _check_optimizer(key: str, optimizer: Any) -> None:
    """Refuse an optimizer whose updates are not fused."""
    if type(optimizer).__module__.startswith("keras."):
        raise ConfigError(
            f"{key} ({type(optimizer).__name__}) is an optimizer of Keras 3, which clips before "
            "gradients are summed and loses counts under parameter servers; its models are trained "
            "by the optimizers here too: choose one, such as optimizer=adam"
        )
    if not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        raise ConfigError(
            f"{key} ({type(optimizer).__name__}) is not in tf.keras.optimizers.legacy, whose "
            f"updates are fused; use one such as {fused_class(optimizer)}, or a choice such as "
            "optimizer=adam"
        )


def _forget_vocabularies(model: Any) -> None:
    """Take vocabularies out of a model's weights: tf_keras has them there, as no variables."""
    for layer in model._flatten_layers() if isinstance(model, tf.keras.layers.Layer) else ():
        weights = layer._non_trainable_weights
        weights[:] = [weight for weight in weights if not hasattr(weight, "num_tensors")]


def _check_keras3(model: keras.Layer, experiment: Experiment) -> None:
    """Refuse what the options rule out for this model."""
    if experiment.strategy.get("devices_per_replica", 1) > 1:
        raise ConfigError(
            "strategy.devices_per_replica divides models of tf_keras alone, and this one is of "
            "Keras 3; add strategy.devices_per_replica=1"
        )
    layers = [x for x in model._flatten_layers() if getattr(x, "synchronized", False)]
    if layers and experiment.jit:
        raise ConfigError(
            "jit cannot be used with Keras 3's synchronized batch normalization "
            f"({layers[0].name}), which communicates within the forward pass; build the layer with "
            "synchronized=False, or use tf_keras"
        )


def _has_weights(model: Any) -> bool:
    """Return whether its own model has steps, and all its layers their weights."""
    return bool(own_steps(model)) and all(
        layer.built for layer in model._flatten_layers() if layer is not model
    )


def check_model(model: Any, key: str, target: str, *, runs_steps: bool) -> None:
    """Check what a model function has returned.

    Args:
        runs_steps: whether the task may run a step of the model's own.

    Raises:
        ConfigError: it is no model, or has its own training step.
    """
    if not callable(model) or isinstance(model, type) or not hasattr(type(model), "variables"):
        kind = "None" if model is None else f"a {type(model).__name__}"
        raise ConfigError(
            f"{key}._target_ ({target}) must return a model of Keras, and returns {kind}; add "
            "return model at its end"
        )
    for name, base in own_steps(model).items() if not runs_steps else ():
        raise ConfigError(
            f"{key}: {base.__module__}.{base.__qualname__} overrides {name}, which is not "
            "called: the task's step would train something else; add task=keras, which runs it as "
            "it is written, or remove it"
        )


def _unused_arguments(model: Any) -> str:
    """Return in words what a model was compiled with, which is not used; empty: it was not."""
    model = getattr(model, "keras_model", model)  # of Keras 3
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return ""
    return f"its loss ({_name(model.loss)}), optimizer ({type(optimizer).__name__}) and metrics"


def _call_failure(model: Any, library: Any, features: Any) -> str:
    """Build a model by calling it on symbolic inputs; return why it cannot be, or nothing."""
    symbolic = tf.nest.map_structure(
        lambda spec: library.Input(spec.shape[1:], dtype=spec.dtype.name), features
    )
    try:
        model(symbolic)
    except Exception as error:  # a call of the user's, which may be made for other inputs
        return error_cause(error).rstrip(".")
    return ""


def _not_built(key: str, model: Any, failure: str) -> ConfigError:
    """Return the error of a model that has no variables, because it cannot be called."""
    return ConfigError(
        f"{key} ({type(model).__name__}) has no variables yet, and calling it with the dataset's "
        f"features fails: {failure}; correct its call, or call it once before it is returned"
    )


def _name(loss: Any) -> str:
    if isinstance(loss, Mapping | list | tuple):
        return ", ".join(map(_name, loss.values() if isinstance(loss, Mapping) else loss))
    return loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", "?"))
