"""The protocols of what continues texts: all that the engine uses of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable


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
