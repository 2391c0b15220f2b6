"""The protocols of what continues texts: all that the engine uses of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import tensorflow as tf


class Sampling(Protocol):
    """How tokens are chosen.

    Attributes:
        tokens: how many follow a prompt.
        temperature: what logits are divided by; 0: the most likely token is chosen.
        top_k: choose among so many of the most likely tokens; None: among all.
        seed: of the random numbers.
    """

    tokens: int
    temperature: float
    top_k: int | None
    seed: int


@runtime_checkable
class WritesText(Protocol):
    """A task whose first model predicts tokens, and which can continue texts."""

    def logits(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the logits of the token after each, [B, T, vocabulary] float32.

        Args:
            tokens: [B, T] int32.
        """

    def continue_text(
        self, prompts: tf.Tensor, sizes: tf.Tensor, numbers: tf.Tensor, sampling: Sampling
    ) -> tf.Tensor:
        """Return the tokens that follow prompts, [B, sampling.tokens] int32.

        A text depends on its prompt, its number and the sampling, not on the others of a batch.

        Args:
            prompts: [B, T] int32, the tokens of prompts and then any others.
            sizes: how many tokens a prompt has, [B] int32 in [1, T].
            numbers: [B] int64; texts of different numbers have different random numbers.
            sampling: how tokens are chosen.
        """


class Tokenizer(Protocol):
    """Turns texts into tokens and back."""

    @property
    def encode(self) -> Callable[[Sequence[str]], Sequence[Sequence[int]]]:
        """The function that returns the tokens of each text."""

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """The function that returns the text of tokens."""


@runtime_checkable
class HasTokenizer(Protocol):
    """A dataset of tokens that can become text."""

    @property
    def tokenizer(self) -> Tokenizer:
        """What made the tokens of the texts."""
