"""What the last lines of a command say of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.runs.time_tally import CATEGORIES
from trainer.text import format_duration, without_classes


def summary(result: Mapping[str, Any], note: str = "") -> str:
    """Return what a run came to: `step 24, test loss 2.2979, 0:04 in 3 attempts, goodput 2 %`.

    Args:
        result: the content of result.json.
        note: what is said of the step.
    """
    split = result.get("split", "test")
    metrics = "".join(
        f", {split} {name} {value:.4f}"
        for name, value in without_classes(result["metrics"]).items()
    )
    attempts = f" in {result['attempts']} attempts" if result["attempts"] > 1 else ""
    goodput = f"goodput {100 * result['goodput']:.0f} %"
    duration = format_duration(result["wall_secs"])
    return f"step {result['step']}{note}{metrics}, {duration}{attempts}, {goodput}"


def times(result: Mapping[str, Any]) -> str:
    """Return where the time went, the largest share first: `93 % steps, 4 % start, 2 % compile`."""
    percent = {
        CATEGORIES[name]: 100 * secs / result["wall_secs"] for name, secs in result["time"].items()
    }
    return ", ".join(
        f"{share:.0f} % {name}"
        for name, share in sorted(percent.items(), key=lambda item: -item[1])
        if share >= 0.5
    )
