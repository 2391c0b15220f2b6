"""How a program compares. No TensorFlow: the process that counts needs none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
