"""A program as a declarative value: what the grammar draws, and what the shrinker makes smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

BATCH = 8
"""Examples in one step."""


@dataclass(frozen=True)
class Input:
    """An input of the model.

    Attributes:
        kind: vector [N, C], scalar [N], column [N, 1], sequence [N, T, C], image [N, H, W, C],
            tokens [N, T] of integers, text [N] of strings.
        wide: the layer that keeps the positions of a sequence or an image; empty: none.
        flat: the layer that makes a vector of it.
        masked: whether positions are masked.
    """

    kind: str = "vector"
    wide: str = ""
    flat: str = ""
    masked: bool = False


@dataclass(frozen=True)
class Output:
    """An output of the model, with its labels, loss and metrics.

    Attributes:
        shape: scalar [N], column [N, 1], vector [N, C], sequence [N, T, C], image [N, H, W, C].
        target: what the labels are: number, flag, class or one_hot.
        dtype: the NumPy type of the labels.
        squeezed: whether the labels lack the last axis of the outputs, which is 1; labels that are
            classes have one more if not.
        logits: whether the outputs are logits.
        loss: a name in `catalog.LOSSES`.
        reduction: of a loss that is a class; empty: its default.
        loss_weight: how much it counts; None: not said.
        metrics: names in `catalog.METRICS`.
        weighted_metrics: the same.
    """

    shape: str = "column"
    target: str = "number"
    dtype: str = "float32"
    squeezed: bool = False
    logits: bool = False
    loss: str = "mse"
    reduction: str = ""
    loss_weight: float | None = None
    metrics: tuple[str, ...] = ()
    weighted_metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Optimizer:
    """An optimizer.

    Attributes:
        name: its class.
        rate: the learning rate.
        options: name and source of further arguments.
        schedule: a name in `catalog.SCHEDULES`; empty: the rate is constant.
        by_key: whether Steadfast gets it by keys instead of the compiled one.
    """

    name: str = "SGD"
    rate: float = 0.1
    options: tuple[tuple[str, str], ...] = ()
    schedule: str = ""
    by_key: bool = False


@dataclass(frozen=True)
class Data:
    """The examples.

    Attributes:
        source: arrays, dataset (of batches), examples (a dataset of single ones), generator or
            sequence (of Keras; both of batches).
        train: examples to train on.
        test: examples to evaluate on.
        weights: sample weights: none, example, element (one for each position) or output.
        class_weights: whether classes are weighted in training.
        container: what holds several inputs or outputs: dict or list.
        special: what is unusual: none, empty_class (the test has none of it), nan (in a label).
    """

    source: str = "arrays"
    train: int = 24
    test: int = 8
    weights: str = "none"
    class_weights: bool = False
    container: str = "dict"
    special: str = "none"


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        library: tf_keras or keras.
        form: functional, sequential or subclassed.
        inputs: its inputs.
        outputs: its outputs.
        layers: names in `catalog.LAYERS`, between the inputs and the outputs.
        step: a name in `steps.STEPS`: which of the model's methods are its own; empty: none.
        built: whether the model has its variables before it is trained.
        optimizer: the optimizer.
        data: the examples.
        steps: the number of steps of an epoch.
        epochs: the number of epochs.
    """

    library: str = "tf_keras"
    form: str = "functional"
    inputs: tuple[Input, ...] = (Input(),)
    outputs: tuple[Output, ...] = (Output(),)
    layers: tuple[str, ...] = ()
    step: str = ""
    built: bool = True
    optimizer: Optimizer = Optimizer()
    data: Data = Data()
    steps: int = 3
    epochs: int = 1

    def with_output(self, number: int, output: Output) -> Program:
        """Return the program with another output in place of one."""
        outputs = list(self.outputs)
        outputs[number] = output
        return replace(self, outputs=tuple(outputs))


def names(letter: str, count: int) -> Iterator[str]:
    """Yield the names of inputs or outputs."""
    yield from (f"{letter}{number}" for number in range(count))
