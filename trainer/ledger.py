"""ledger.jsonl: where the wall time went, one line an entry, summed over all attempts. No TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Ledger:
    """Appends entries `{"event", "step", "secs", "at"}`; `at` is Unix time at the end of what took `secs` seconds."""

    def __init__(self, run_dir: Path, *, is_chief: bool = True) -> None:
        self._path, self._is_chief = run_dir / "ledger.jsonl", is_chief
        # A line that a kill cut off must not swallow the first one of this attempt.
        if is_chief and self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def add(self, event: str, step: int, secs: float = 0.0) -> None:
        """Enters one event; the chief's alone are kept."""
        if not self._is_chief:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "step": step, "secs": round(secs, 6), "at": time.time()}) + "\n")

    @contextmanager
    def timed(self, event: str, step: int) -> Iterator[None]:
        """Enters an event with the time that the block took."""
        begin = time.monotonic()
        yield
        self.add(event, step, time.monotonic() - begin)

    def entries(self) -> list[dict[str, Any]]:
        """Gives all entries, over all attempts; a line that a kill cut off is left out."""
        found = []
        for line in self._path.read_text().splitlines() if self._path.exists() else []:
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def attempts(self) -> int:
        """Gives the number of attempts so far."""
        return sum(entry["event"] == "start" for entry in self.entries())

    def wall_secs(self) -> float:
        """Gives the time that all attempts took, from their start to the last that is known of them."""
        total, began, last = 0.0, 0.0, 0.0
        for entry in [*self.entries(), {"event": "start", "at": 0.0, "secs": 0.0}]:
            if entry["event"] == "start":
                total += last - began
                began = entry["at"] - entry["secs"]
            last = entry["at"]
        return total
