"""Rules of `fault` and of `divergence`, and of audits. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainer.config.faults import ACTIONS, action_of
from trainer.config.options import targets
from trainer.config.options.constraints import format_value
from trainer.config.rules import loop
from trainer.config.rules.run_folder import NAME_RULE
from trainer.config.schema import Experiment


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    yield from _check_faults(experiment)
    yield from _check_divergence(experiment)
    every = experiment.watchdog.audit_every_steps
    if every is not None and experiment.divergence.action == "skip":
        yield (
            f"watchdog.audit_every_steps ({every}) cannot be used with divergence.action (skip): "
            "to skip an update does not repair a variable that is wrong; add "
            "divergence.action=rollback or stop"
        )


def _check_faults(experiment: Experiment) -> Iterator[str]:
    for name, fault in (experiment.fault or {}).items():
        path = f"fault.{name}"
        action = f"{path}.action is {fault.kind}"
        if fault.kind == "own":
            yield from targets.check(fault.action, f"{path}.action", "fault.action")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", str(name)):
            yield f"{path} must be usable as a file's name; {NAME_RULE}"
        if fault.kind != "own" and fault.kind not in ACTIONS:
            continue  # said already
        for key, fixed in action_of(fault.kind).fixed.items():
            if (value := getattr(fault, key)) != fixed:
                yield (
                    f"{path}.{key} ({format_value(value)}) must be {format_value(fixed)} "
                    f"where {action}"
                )
        if action_of(fault.kind).needs_loop and (name_of_loop := loop.name_of(experiment)):
            yield (
                f"{action}, which needs the built-in loop, and loop is {name_of_loop}; "
                "choose another action"
            )
        if fault.kind == "slow" and not fault.delay_secs:
            yield f"{path}.delay_secs ({fault.delay_secs}) must be > 0 where {action}"


def _check_divergence(experiment: Experiment) -> Iterator[str]:
    divergence = experiment.divergence
    steps = divergence.rollback_steps
    if steps > 1 and divergence.action != "rollback":
        yield (
            f"divergence.rollback_steps ({steps}) needs divergence.action=rollback, it is "
            f"{divergence.action}; add divergence.action=rollback"
        )
    if steps > divergence.max_skips:
        yield (
            f"divergence.rollback_steps ({steps}) must be <= divergence.max_skips "
            f"({divergence.max_skips}); add divergence.max_skips={steps}"
        )
    if steps > 1 and experiment.evaluate.sidecar and experiment.trains:
        yield (
            f"divergence.rollback_steps ({steps}) removes checkpoints that evaluate.sidecar (true) "
            "may have evaluated; add divergence.rollback_steps=1 or evaluate.sidecar=false"
        )
