"""What is replaced in TensorFlow and Keras, as they have no local way.

Each replacement for the whole process does what the original does unless a thread has requested
more. tests/engine/graph/test_library_patches.py fails when TensorFlow or Keras changes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.eager import backprop

Scope: TypeAlias = Callable[[], AbstractContextManager[Any]]

# Replicas and shards are traced in one thread each, hence thread-local.
_current = threading.local()


@contextmanager
def gradients_added_by(add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Iterator[None]:
    """Have tapes inside add up the gradients of what is used several times, one after the other.

    They make one AddN of them. TensorFlow's optimizer sorts its inputs by their names, which differ
    with the number of shards on a device. And its kernel adds to the first input whose memory
    nothing else reads any more, so of three inputs the order is a matter of time.
    """
    _register_vspace()
    _current.add = add
    try:
        yield
    finally:
        _current.add = None


@functools.cache
def _register_vspace() -> None:
    original = backprop._default_vspace

    def aggregate(gradients: Sequence[Any]) -> Any:
        add = getattr(_current, "add", None)
        is_dense = all(isinstance(gradient, tf.Tensor) for gradient in gradients)
        if len(gradients) < 3 or not is_dense or add is None:
            return original.aggregate_fn(gradients)
        return functools.reduce(add, gradients)

    pywrap_tfe.TFE_Py_RegisterVSpace(original._replace(aggregate_fn=aggregate))


@functools.cache
def end_iterators_at_once() -> None:
    """Have the iterators of distributed datasets end without a wait for their tuning.

    A thread of TensorFlow tunes each pipeline, less and less often. Where it misses that its
    iterator ends, the end waits for its next turn: as long as the iterator has lived, at most a
    minute. What moves batches to the devices has nothing to tune, but no option for it.
    """
    original = multi_device_iterator_ops._create_device_dataset

    @functools.wraps(original)
    def create(*args: Any, **options: Any) -> tf.data.Dataset:
        return untuned(original(*args, **options))

    multi_device_iterator_ops._create_device_dataset = create


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset without a thread that tunes it."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextmanager
def targets_noted(note: Callable[[tf.Tensor], None]) -> Iterator[None]:
    """Call `note` inside with each number that a tape derives, before it does."""
    _note_targets()
    _current.note = note
    try:
        yield
    finally:
        _current.note = None


@functools.cache
def _note_targets() -> None:
    original = tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(self: tf.GradientTape, target: Any, *args: Any, **options: Any) -> Any:
        note = getattr(_current, "note", None)
        if note is not None and tf.is_tensor(target) and target.shape.rank == 0:
            note(target)
        return original(self, target, *args, **options)

    tf.GradientTape.gradient = gradient


def scale_no_losses(*, of_tf_keras: bool) -> None:
    """Have Keras divide no loss by the number of replicas, from now on: the engine does."""
    if of_tf_keras:
        from tf_keras.src.utils import losses_utils as module

        # Keras refuses means where there is a strategy, for it would divide by too little.
        reduction = tf.keras.losses.Reduction

        def own_reduction(self: Any) -> str:
            if getattr(self, "_is_sum", False):
                return reduction.SUM
            is_auto = self.reduction == reduction.AUTO
            return reduction.SUM_OVER_BATCH_SIZE if is_auto else self.reduction

        tf.keras.losses.Loss._get_reduction = own_reduction
    else:
        from keras.src.losses import loss as module

        module.unscale_loss_for_distribution = lambda value: value
    module.scale_loss_for_distribution = lambda value: value


def run_layer_within(layer: tf.keras.layers.Layer, scope: Scope) -> None:
    """Enter a new `scope()` around each call of a layer, and around its losses.

    Casts of the inputs and masks are made around `call`, by `__call__`, which Python looks up in
    the class: so the layer gets its own class, with the name of its class.
    """
    kind = type(layer)
    members = {"__call__": _within(scope, kind.__call__), "__module__": kind.__module__}
    layer.__class__ = type(kind.__name__, (kind,), members)
    layer._callable_losses[:] = [_within(scope, loss) for loss in layer._callable_losses]


def _within(scope: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with scope():
            return function(*args, **options)

    return call
