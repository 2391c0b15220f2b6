"""The optimizers of Keras programs: fused equivalents, Keras' own, and their proxies."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from trainer.config.instantiate import instantiate
from trainer.engine.graph.library_patches import targets_noted
from trainer.engine.graph.state.variables import pieces_of
from trainer.engine.graph.step import lockstep
from trainer.engine.graph.step.assignments import shared_values
from trainer.engine.graph.step.update_check import Clip
from trainer.errors import ConfigError
from trainer.keras_objects import optimizer_options
from trainer.protocols import OptimizerNode, TaskParts

_log = logging.getLogger(__name__)

_LEGACY = "tensorflow.keras.optimizers.legacy"
_SAME: Mapping[str, tuple[str, str]] = {
    "Adam": ("trainer.optimizers.adamw.AdamW", "beta_1 beta_2 epsilon"),
    "AdamW": ("trainer.optimizers.adamw.AdamW", "beta_1 beta_2 epsilon"),
    "SGD": ("trainer.optimizers.sgd.SGD", "momentum nesterov"),
    "RMSprop": ("trainer.optimizers.rmsprop.RMSprop", "rho momentum epsilon centered"),
    "Adagrad": ("trainer.optimizers.adagrad.Adagrad", "initial_accumulator_value epsilon"),
    "Lion": ("trainer.optimizers.lion.lion", "beta_1 beta_2"),
    "Adadelta": (f"{_LEGACY}.Adadelta", "rho epsilon"),
    "Adamax": (f"{_LEGACY}.Adamax", "beta_1 beta_2 epsilon"),
    "Ftrl": (
        f"{_LEGACY}.Ftrl",
        "learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength l2_shrinkage_regularization_strength beta",
    ),
}
"""Keras' optimizers -> the fused one of the same formula, and the options that both have."""

_IGNORED = (
    "name", "learning_rate", "is_legacy_optimizer", "jit_compile", "ema_momentum",
    "ema_overwrite_frequency", "loss_scale_factor",
)  # fmt: skip
_CLIPS = {"clipnorm": "each", "global_clipnorm": "norm", "clipvalue": "value"}
"""Options by which an optimizer clips: the first that is set -> the same of `Clip`."""
_AS_IT_IS = (
    "it runs as it is, for no fused optimizer makes exactly its updates; optimizer=<choice> "
    "replaces it"
)


def build(
    parts: TaskParts,
    optimizer: Any,
    name: str = "optimizer",
    updates: int = 1,
    weights: Iterable[Any] = (),
) -> Any:
    """Build the configured optimizer; without one that which does what the model's does.

    Args:
        weights: the model's trainable variables, of its own Keras.
    """
    if optimizer is not None and parts.has_optimizer and parts.is_chief:
        _log.warning("model: compiled with %s, which optimizer= replaces", type(optimizer).__name__)
    if optimizer is None or parts.has_optimizer:
        return parts.optimizer(updates_per_step=updates)
    # The engine has its own loss scale.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = _rate(optimizer)
    same = _same(optimizer)
    how = f"{same[0]} makes the same updates" if same is not None else _AS_IT_IS
    if parts.is_chief:
        level = logging.WARNING if same is None else logging.INFO
        _log.log(level, "model: compiled with %s; %s", type(optimizer).__name__, how)

    def make(rate: Callable[[Any], Any]) -> Any:
        if same is None and not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            return KerasOptimizer(optimizer, rate, weights)
        own = _legacy(optimizer, rate) if same is None else _fused(optimizer, *same, rate)
        own.own_clips = _clips(optimizer)
        return own

    node = OptimizerNode(f"model.{name}", {"learning_rate": 1.0 if callable(rate) else rate})
    schedule = _Followed(rate) if callable(rate) else None
    return parts.optimizer(node, schedule=schedule, updates_per_step=updates, make=make)


def _same(optimizer: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the target of the fused optimizer of the same formula, and its options, if any."""
    kind = type(optimizer)
    if kind.__name__ not in _SAME or kind.__module__.partition(".")[0] not in ("keras", "tf_keras"):
        return None
    target, names = _SAME[kind.__name__]
    config = optimizer_options(optimizer)
    config.pop("learning_rate", None)
    options = {name: config.pop(name) for name in names.split() if name in config}
    is_legacy = isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer)
    if is_legacy and (kind.__name__ in ("Adagrad", "RMSprop") or optimizer.gradient_transformers):
        return None  # those put their epsilon elsewhere
    if config.get("weight_decay") and kind.__name__ not in ("Adadelta", "Adamax", "Ftrl"):
        options["weight_decay"] = config.pop("weight_decay")
    others = config.keys() - {*_IGNORED, *_CLIPS}
    if any(config[name] for name in others):
        return None  # use_ema, amsgrad, gradient_accumulation_steps and the like
    return target, options


def _fused(
    optimizer: Any, target: str, options: Mapping[str, Any], rate: Callable[[Any], Any]
) -> Any:
    """Return a fused optimizer that makes the updates of another one at a learning rate."""
    own = {"weight_decay": 0.0, **options} if target.startswith("trainer.") else dict(options)
    epsilon = own.get("epsilon")
    if "centered" in own:  # for the value 0 the legacy class does not use the kernel
        own["momentum"] = lambda: options["momentum"]
    if target.endswith("Adagrad"):
        # The kernel adds epsilon to the root, Keras to the sum under it.
        own["initial_accumulator_value"] += epsilon
        epsilon = 0.0
    fused = instantiate({"_target_": target}, "model.optimizer", rate, named=own)
    if epsilon is not None:
        fused.epsilon = epsilon  # also 0, which the constructor does not take
    if own.get("weight_decay"):
        fused.decays = optimizer._use_weight_decay
    return fused


def _legacy(optimizer: Any, rate: Callable[[Any], Any]) -> Any:
    """Return another optimizer of the same legacy class, at a learning rate; it does not clip."""
    own = type(optimizer).from_config(optimizer_options(optimizer))
    own.clipnorm = own.clipvalue = own.global_clipnorm = None
    own.gradient_transformers = optimizer.gradient_transformers
    own.learning_rate = lambda: rate(own.iterations)
    return own


def _clips(optimizer: Any) -> list[Clip]:
    """Return how an optimizer clips gradients, in order."""
    clips = [
        Clip(**{kind: float(bound)}) for name, kind in _CLIPS.items()
        if (bound := getattr(optimizer, name, None))
    ]  # fmt: skip
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return [*clips[::-1]]
    return clips[:1]


def _rate(optimizer: Any) -> Any:
    """Return the learning rate of a compiled optimizer: a number, or a function of the update."""
    hyper = getattr(optimizer, "_hyper", {})
    rate = hyper["learning_rate"] if hyper else optimizer._learning_rate
    if not callable(rate):
        return float(tf.convert_to_tensor(rate))
    return rate if hasattr(rate, "get_config") else lambda update: rate()


class _Followed(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of either Keras, as the fused optimizers follow it."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.cast(self._schedule(step), tf.float32)


_ONE_DEVICE = SimpleNamespace(
    extended=SimpleNamespace(
        update=lambda variable, change, args=(), kwargs=None, group=True: change(
            variable, *args, **(kwargs or {})
        )
    )
)
"""Replaces the strategy that an optimizer updates variables through."""

with tf.Graph().as_default():  # in any strategy's scope
    _NO_STRATEGY = tf.distribute.get_strategy()


class KerasOptimizer:
    """An optimizer of Keras without a fused counterpart, or of the user, as the engine calls one.

    The optimizers of both Kerases sum gradients over the replicas and update variables through the
    strategy. The engine has already summed, so here each device runs the whole optimizer by itself
    on its copy of the variables, as a program of one device does: clipping, decay, averages,
    accumulation.

    Touches private names of Keras (`_distribution_strategy`, `_learning_rate`, its stateless
    scope); tests/tasks/keras/test_compiled_optimizer.py fails when they move.

    Args:
        rate: returns the learning rate of an update, from its number.
    """

    def __init__(
        self, optimizer: Any, rate: Callable[[Any], Any], weights: Iterable[Any] = ()
    ) -> None:
        self._optimizer = _unbuilt(optimizer)
        self._is_of_tf_keras = isinstance(optimizer, tf.keras.optimizers.Optimizer)
        self._weights = {id(_of_tensorflow(weight)): weight for weight in weights}
        self._trained: list[Any] = []
        self._variables: list[tf.Variable] = []
        self._name = type(optimizer).__name__
        self.iterations: tf.Variable = _of_tensorflow(self._optimizer._iterations)
        self.learning_rate = rate
        self.updates_per_step = 1

    def variables(self) -> list[tf.Variable]:
        return self._variables

    def get_slot_names(self) -> list[str]:
        return []  # `variables` has all

    def _create_all_weights(self, variables: Sequence[tf.Variable]) -> None:
        """Create what the optimizer keeps for variables, in the strategy's scope."""
        created: list[tf.Variable] = []

        def note(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            created.append(next_creator(**options))
            return created[-1]

        optimizer = self._optimizer
        self._trained = [self._weight(variable) for variable in variables]
        with tf.variable_creator_scope(note):
            optimizer.build(self._trained)
        held = map(_of_tensorflow, (*optimizer.variables, *vars(optimizer).values(), *created))
        self._variables = list({id(v): v for v in held if isinstance(v, tf.Variable)}.values())
        # Another object of the same variables: the model's own is saved with the model.
        self._optimizer = object.__new__(type(optimizer))
        attributes = vars(self._optimizer)
        attributes |= vars(optimizer)
        attributes |= {
            "build": lambda variables: None,
            "_distribution_strategy": _ONE_DEVICE,
            "jit_compile": False,
            "loss_scale_factor": None,  # the engine has unscaled the gradients
        }
        if "_u_product_counter" in attributes:
            # The counter of tf_keras' Nadam counts what is traced, and `fit` traces twice.
            attributes["_u_product_counter"] += len(variables)
        if callable(optimizer._learning_rate):  # Keras 3 takes no schedule of tf_keras
            followed = self.learning_rate if self._is_of_tf_keras else self._rate
            attributes["_learning_rate"] = followed

    def _rate(self) -> tf.Tensor:
        return self.learning_rate(self.iterations.read_value())

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        experimental_aggregate_gradients: bool = False,
    ) -> None:
        """Update variables, in replica context, by gradients that are equal on all replicas."""
        if experimental_aggregate_gradients:
            raise ConfigError(
                f"model: compiled with {self._name}, which runs as Keras' own, and parameter "
                "servers and central storage would lose its counts; add optimizer=<choice>, or "
                "strategy=mirrored"
            )
        pairs = list(grads_and_vars)
        variables = [self._weight(variable) for _, variable in pairs]

        def everywhere(strategy: tf.distribute.Strategy, *gradients: Any) -> None:
            numbers = itertools.count()

            def update(_: tf.Variable, *own: tf.Tensor) -> tf.Tensor:
                with _Alone(_NO_STRATEGY, next(numbers)), self._stateful():
                    self._update(list(zip(own, variables, strict=True)))
                return tf.constant(True)

            strategy.extended.update(self.iterations, update, args=gradients)

        context = tf.distribute.get_replica_context()
        context.merge_call(everywhere, args=tuple(gradient for gradient, _ in pairs))

    def _update(self, pairs: Sequence[tuple[tf.Tensor, Any]]) -> None:
        optimizer = self._optimizer
        before = dict(vars(optimizer))
        if not callable(optimizer._learning_rate):
            optimizer._learning_rate.assign(self._rate())
        optimizer.apply_gradients(pairs)
        # Each device is traced in the same way, also where the optimizer counts in Python.
        vars(optimizer).update(before)

    def finish(self) -> None:
        """Give the variables their final values, as `fit` does at its end."""
        if getattr(self._optimizer, "use_ema", False):
            self._optimizer.finalize_variable_values(self._trained)

    def _weight(self, variable: tf.Variable) -> Any:
        return self._weights.get(id(variable), variable)

    @contextmanager
    def _stateful(self) -> Iterator[None]:
        """Have variables of Keras 3 be assigned to inside, also where a step only notes that."""
        if self._is_of_tf_keras:
            yield
            return
        from keras.src.backend.common import global_state

        scope = global_state.get_global_attribute("stateless_scope")
        global_state.set_global_attribute("stateless_scope", None)
        try:
            yield
        finally:
            global_state.set_global_attribute("stateless_scope", scope)


class _Alone(tf.distribute.ReplicaContext):
    """A program of one device, within the update of one of several."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return value


def _of_tensorflow(variable: Any) -> Any:
    """Return the variable of TensorFlow that one of Keras 3 consists of; all else as it is."""
    return getattr(variable, "value", variable) if is_of_keras3(variable) else variable


def _unbuilt(optimizer: Any) -> Any:
    """Return an optimizer without variables of another model, or of another strategy."""
    iterations = _of_tensorflow(optimizer._iterations)
    is_built = getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)
    if not is_built and tf.distribute.get_strategy().extended.variable_created_in_scope(iterations):
        return optimizer
    try:
        unbuilt = type(optimizer).from_config(optimizer_options(optimizer))
    except TypeError as error:
        raise ConfigError(
            f"model: compiled with {type(optimizer).__name__}, which already has variables, and "
            "its get_config does not give the arguments of another one; create it where the model "
            f"is compiled, or complete get_config ({error})"
        ) from error
    kept = {n: x for n, x in vars(optimizer).items() if n.startswith("_exclude_from_weight_decay")}
    vars(unbuilt).update(kept)
    return unbuilt


def is_of_keras3(value: Any) -> bool:
    """Return whether an object is of Keras 3, not of tf_keras."""
    return type(value).__module__.partition(".")[0] == "keras"


# Replicas and shards are traced in one thread each, hence thread-local.
_current = threading.local()


@dataclass(frozen=True)
class Update:
    """An update that a model's own step requests of an optimizer.

    Attributes:
        name: the attribute of the model that is the optimizer.
        gradients: dense, float32 or of the variables' types.
        loss: what they were derived from, float32 scalar; 0 if that is unknown.
    """

    name: str
    variables: list[tf.Variable]
    gradients: list[tf.Tensor]
    loss: tf.Tensor


@contextmanager
def traced_step(index: tf.Tensor) -> Iterator[None]:
    """Trace a model's own step inside; `index` is the number of the training step."""
    _current.loss, _current.index = None, index

    def note(loss: tf.Tensor) -> None:
        _current.loss = loss

    try:
        # The divergence monitor judges it.
        with targets_noted(note):
            yield
    finally:
        _current.loss = _current.index = None


class OptimizerProxy:
    """Replaces an optimizer in a model's own step: its updates go through the engine's."""

    def __init__(self, name: str, original: Any) -> None:
        self._steadfast_name = name
        self.original = original
        self.updating: Any = None

    @property
    def iterations(self) -> tf.Tensor:
        return _current.index if self.updating is None else self.updating.iterations.read_value()

    @property
    def learning_rate(self) -> tf.Tensor:
        rate = 0.0 if self.updating is None else self.updating.learning_rate
        if not callable(rate):
            return tf.convert_to_tensor(rate)
        by_number = isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        return tf.cast(rate(self.iterations) if by_number else rate(), tf.float32)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], **options: Any) -> None:
        """Update variables by the mean gradient of the global batch; those without stay."""
        pairs = [(gradient, v) for gradient, v in grads_and_vars if gradient is not None]
        if not pairs:
            raise ConfigError(
                f"model: {self._steadfast_name}.apply_gradients was given no gradient; compute the "
                "loss from the variables within the tape"
            )
        variables = [getattr(v, "value", v) if is_of_keras3(v) else v for _, v in pairs]
        split = next((v for v in variables if pieces_of(v) != [v]), None)
        if split is not None:
            raise ConfigError(
                f"model: its own train_step updates {split.name}, which parameter servers hold in "
                "partitions; add strategy.partitioner=none"
            )
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        loss = getattr(_current, "loss", None)
        loss = tf.zeros([]) if loss is None else tf.cast(loss, tf.float32)
        meet = tf.autograph.experimental.do_not_convert(lockstep.meet)
        with shared_values():
            meet(Update(self._steadfast_name, variables, gradients, loss))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update as Keras 3's `apply` does."""
        if trainable_variables is None:
            raise ConfigError(
                f"model: {self._steadfast_name}.apply needs the variables; write "
                "apply(gradients, variables)"
            )
        self.apply_gradients(zip(grads, trainable_variables, strict=True))

    def minimize(
        self, loss: Any, var_list: Any, grad_loss: Any = None, name: Any = None, tape: Any = None
    ) -> None:
        """Update by the gradient of a loss that a tape has recorded."""
        if tape is None:
            raise ConfigError(
                f"model: {self._steadfast_name}.minimize needs tape=, the GradientTape of the loss"
            )
        variables = var_list() if callable(var_list) else list(var_list)
        self.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss: the engine scales none of a model's own step."""
        return loss

    get_scaled_loss = scale_loss
    get_unscaled_gradients = scale_loss

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.original, name)
        if callable(value) or isinstance(value, tf.Variable) or is_of_keras3(value):
            raise ConfigError(
                f"model: its own step uses {self._steadfast_name}.{name}, which the engine's "
                "optimizer does not have; apply_gradients, apply, minimize, iterations and "
                "learning_rate it has"
            )
        return value
