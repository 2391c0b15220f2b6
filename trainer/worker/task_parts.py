"""What a task is built from: models, and optimizers with their learning rates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.config.instantiate import instantiate, instantiate_model
from trainer.config.schema import ENGINE_KEYS, Experiment
from trainer.engine.adapted_layers import AdaptedLayers
from trainer.engine.graph.input.feature_specs import (
    batch_specs,
    feature_specs,
    has_weights,
    model_arguments,
)
from trainer.engine.graph.step.grouped_optimizer import GroupedOptimizer, GroupRules
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
    OptimizerNode,
    ScheduleNode,
    Split,
    SplitDefaults,
    Stream,
    label_kind_of,
    with_defaults,
)
from trainer.schedules.schedule import adjust, of_steps, scale, slow_down
from trainer.worker import returned_model

_log = logging.getLogger(__name__)

Schedule: TypeAlias = Callable[[Any], Any]
"""The learning rate, float32 scalar, of a step, int64 scalar."""


class Parts:
    """Builds what a task asks for; see `trainer.protocols.TaskParts`.

    Attributes:
        learning_rates: the learning rate of each optimizer that was built, by its name in the log.
        worker: number of this process.
        num_workers: processes that run every step together.
        is_chief: whether this process writes the files of the run.

    Args:
        callbacks: some may adjust learning rates.
        adapted: what the layers of the run were adapted to; None: nothing is kept.
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        *,
        plan: Plan,
        callbacks: Mapping[str, Any],
        process_group: ProcessGroup,
        num_parts: int = 1,
        adapted: AdaptedLayers | None = None,
    ) -> None:
        self._experiment = experiment
        self.dataset = dataset
        self._plan = plan
        self._callbacks = callbacks
        self._adapted = adapted or AdaptedLayers(None, process_group, adapts=True)
        self.num_parts = num_parts
        self.worker = process_group.index
        self.num_workers = process_group.count
        self.is_chief = process_group.is_chief
        self.label_kind = label_kind_of(dataset)
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
                "the dataset does not know how many examples of each class it has without reading "
                "all of them"
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
        return batch_specs(self.dataset, self._plan.epochs.global_size)

    @property
    def test_specs(self) -> Mapping[str, Any] | None:
        if not self._evaluated.num_examples:
            return None
        return batch_specs(self.dataset, self._plan.epochs.global_size, self._evaluated)

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
        return self._experiment.optimizer is not None

    @property
    def env(self) -> EnvSpec | None:
        return with_defaults(self.dataset, LoopDefaults).env

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    @property
    def num_outputs(self) -> int:
        declared = (self._experiment.model or {}).get("outputs")
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
            with self._adapted.restored():
                return instantiate_model(options, key, arguments)

        model, failure = returned_model.adapted(
            build, key, options, arguments["features"], self._experiment
        )
        self._models.append((key, model, failure))
        return model

    def check_models(self) -> None:
        """Check that the models are built, by the task if it calls them otherwise."""
        for key, model, failure in self._models:
            # A call that fails leaves the model itself built.
            if failure and not (model.variables and all(x.built for x in model._flatten_layers())):
                raise returned_model.not_built(key, model, failure)

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
        """Check that a task with a model or optimizer of its own uses the configured one, if any.

        Says what else of a model is not used.

        Raises:
            ConfigError: it does not; the run would be named by what changes nothing.
        """
        choices = self._experiment.choices or {}
        problems = [
            f"{group} ({choices.get(group)}) is not used by task={choices.get('task')}, which has "
            f"its own; leave {group}=<choice> out, or add ~{group}"
            for group in ("model", "optimizer")
            if group in self._own - self._used and getattr(self._experiment, group) is not None
        ]
        if problems:
            raise ConfigError(*problems)
        for key, model, _ in self._models:
            if (
                choices.get("task") != "keras"
                and self._experiment.trains
                and self.is_chief
                and (parts := returned_model.ignored(model))
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
        options = getattr(self._experiment, group)
        if options is None:
            raise ConfigError(f"{group} has no value, but the task needs one; add {group}=<choice>")
        self._used.add(group)
        return group, options

    def _learning_rate(self, peak: float, node: ScheduleNode | Schedule | None) -> Schedule:
        """Build a learning rate, adjusted by the callbacks that do so.

        It is scaled linearly with the batch if a reference batch is set (Goyal et al. 2017).

        Raises:
            ConfigError: it has a schedule of its own, and another one is configured.
        """
        adjustments = [
            callback.adjust_learning_rate
            for callback in self._callbacks.values()
            if hasattr(callback, "adjust_learning_rate")
        ]
        if node is not None and not isinstance(node, ScheduleNode):
            chosen = (self._experiment.choices or {}).get("schedule", "constant")
            if chosen != "constant":
                raise ConfigError(
                    f"schedule ({chosen}) cannot be used with the model's own schedule "
                    f"({type(node).__name__}), which it was compiled with; leave schedule= out, or "
                    "add optimizer=<choice>"
                )
            return adjust(node, adjustments)
        key = "schedule" if node is None else node.key
        options = self._experiment.schedule if node is None else node.options
        if reference := options.get("reference_batch"):
            peak *= self._plan.epochs.global_size / reference
        schedule = instantiate(
            options,
            key,
            peak,
            self._plan.total_steps,
            self._plan.epochs.length,
            leave_out=("reference_batch",),
        )
        is_ours = options["_target_"].startswith("trainer.")
        if is_ours and schedule.warmup_steps > self._plan.total_steps:
            _log.warning(
                "%s: the warm-up takes %d steps, and the training %d: the learning rate does not "
                "reach its peak; add %s.warmup_steps=<fewer>",
                *(key, schedule.warmup_steps, self._plan.total_steps, key),
            )
        return adjust(schedule, adjustments)


def _optimizer(options: Mapping[str, Any], key: str, rate: Schedule) -> Any:
    optimizer = instantiate(options, key, rate, leave_out=tuple(ENGINE_KEYS["optimizer"]))
    returned_model.check_optimizer(key, optimizer)
    if options.get("lazy"):
        if not getattr(optimizer, "can_be_lazy", False):
            raise ConfigError(
                f"{key}.lazy (true) updates rows of a table alone, and this optimizer "
                f"({optimizer._name}) needs the whole table; remove it"
            )
        optimizer.lazy = True
    return optimizer
