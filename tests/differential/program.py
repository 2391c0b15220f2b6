"""A program as a declarative value: what the grammar draws, and what the shrinker makes smaller."""

from __future__ import annotations

from dataclasses import dataclass

BATCH = 8
"""Examples in one step."""


@dataclass(frozen=True)
class Input:
    """An input: vector [N, C], scalar [N], column [N, 1], sequence [N, T, C], image [N, H, W, C],
    tokens [N, T] of integers, or text [N] of strings."""

    kind: str = "vector"
    wide: str = ""  # the layer that keeps the positions of a sequence or an image
    flat: str = ""  # the layer that makes a vector of it
    masked: bool = False


@dataclass(frozen=True)
class Output:
    """An output: scalar [N], column [N, 1], vector [N, C], sequence [N, T, C] or image
    [N, H, W, C]; with its labels, loss and metrics, which are names in the catalog."""

    shape: str = "column"
    target: str = "number"  # the labels: number, flag, class or one_hot
    dtype: str = "float32"
    squeezed: bool = False  # labels lack the last axis of 1; classes have one more if not
    logits: bool = False
    loss: str = "mse"
    reduction: str = ""  # of a loss that is a class
    loss_weight: float | None = None
    metrics: tuple[str, ...] = ()
    weighted_metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Optimizer:
    """The class of an optimizer, and its options."""

    name: str = "SGD"
    rate: float = 0.1
    options: tuple[tuple[str, str], ...] = ()  # names and sources
    schedule: str = ""  # a name in the catalog
    by_key: bool = False  # Steadfast gets it by keys instead of the compiled one


@dataclass(frozen=True)
class Data:
    """The examples: arrays, a dataset (of batches), examples (a dataset of single ones), a
    generator or a sequence of Keras (both of batches)."""

    source: str = "arrays"
    train: int = 24
    test: int = 8
    weights: str = "none"  # or example, element (one for each position) or output
    class_weights: bool = False
    container: str = "dict"  # or list, of several inputs or outputs
    special: str = "none"  # or empty_class (the test has none of it), nan (in a label)
    lengths: bool = False  # sequences are shorter in some batches than in others


@dataclass(frozen=True)
class Program:
    """A program; the layers, which are between inputs and outputs, and step are names."""

    library: str = "tf_keras"
    form: str = "functional"  # or sequential or subclassed
    inputs: tuple[Input, ...] = (Input(),)
    outputs: tuple[Output, ...] = (Output(),)
    layers: tuple[str, ...] = ()
    step: str = ""
    built: bool = True  # has its variables before it is trained
    optimizer: Optimizer = Optimizer()
    data: Data = Data()
    steps: int = 1
    epochs: int = 1


def names(letter, count):
    """Yield the names of inputs or outputs."""
    yield from (f"{letter}{number}" for number in range(count))
