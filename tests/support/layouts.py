"""Into which parts a global batch is divided, for tests that compare such."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """How a global batch is computed."""

    replicas: int = 1
    accumulate: int = 1
    shards: int | None = None

    def __str__(self) -> str:
        return f"{self.replicas}x{self.accumulate}, {self.shards} shards"
