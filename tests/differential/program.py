"""A program as a declarative value, and how it compares. No TensorFlow: who counts needs none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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


EQUAL, REFUSED, KERAS_REFUSES = "equal", "refused", "Keras refuses"
DIFFERENT, CRASHED = "different", "crashed"


@dataclass(frozen=True)
class Outcome:
    """How a program compares."""

    kind: str
    layout: str = ""  # of several the first that is not equal
    detail: str = ""
    signature: str = ""  # what stays the same while the program is made smaller
    refusals: dict[str, str] = field(default_factory=dict)  # layouts, where one device was not
    secs: float = 0.0

    @property
    def is_defect(self):
        """Whether Steadfast is wrong."""
        return self.kind in (DIFFERENT, CRASHED)


@dataclass(frozen=True)
class Report:
    """What came out of a program."""

    number: int
    outcome: Outcome
    text: str = ""  # the script that shows a defect, and what is wrong

    def line(self):
        """Return the program's line of progress."""
        outcome = self.outcome
        words = [f"{self.number:5} {outcome.secs:5.1f} s  {outcome.kind}"]
        words += [f"{outcome.layout}: {outcome.detail.splitlines()[0]}"] if outcome.detail else []
        words += [f"(refused on {', '.join(outcome.refusals)})"] if outcome.refusals else []
        return " ".join(words)[:240]


def reason(text):
    """Return what an error says, without what is of one program alone."""
    short = re.sub(r"/\S+?\.py(:\d+)?", "<file>", text.splitlines()[0] if text else "")
    short = re.sub(r"\b(\w*_)?[xy]\d\b", "_", short)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "0", short)[:160]
