"""What of a configuration nothing uses: a custom loop or an environment takes its place.

A key that would silently be ignored is refused, and an unused group does not name the run.
No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from trainer.config.rules import loop
from trainer.config.schema import GROUPS, ONE_CHOICE, Experiment


def check(experiment: Experiment, overrides: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each override that sets an unused key; null is allowed.

    Args:
        overrides: key and value of each override of the command line.
    """
    reasons = _reasons(experiment)
    for key in dict.fromkeys(key for key, value in overrides if value != "null"):
        section = f"{key.replace('/', '.')}."
        if name := next((name for name in reasons if section.startswith(f"{name}.")), None):
            yield f"{key} {reasons[name]}; remove it"


def remove(experiment: Experiment) -> None:
    """Remove the unused groups."""
    for group in _reasons(experiment):
        if group in GROUPS:
            setattr(experiment, group, None if group in ONE_CHOICE else {})
            experiment.choices[group] = None


def _reasons(experiment: Experiment) -> dict[str, str]:
    """Return why a key or section is unused, by its name."""
    reasons: dict[str, str] = {}
    if (name := loop.name_of(experiment)) is not None:
        reason = f"is a key of the built-in loop, and loop ({name}) replaces that"
        reasons |= dict.fromkeys(_built_in(Experiment), reason)
    if experiment.env is None:
        return {**dict.fromkeys(("buffer", "actors"), "needs env=<choice>"), **reasons}
    env = experiment.choices.get("env")
    return {"dataset": f"has no use: env ({env}) takes its place", **reasons}


def _built_in(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the keys and sections of the built-in loop."""
    for item in fields(schema):
        section: Any = item.default_factory
        if item.metadata["built_in"]:
            yield f"{path}{item.name}"
        elif is_dataclass(section):
            yield from _built_in(section, f"{path}{item.name}.")
