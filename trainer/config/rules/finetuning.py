"""The rules of keys that treat some weights apart: frozen layers, groups, initial weights.

Which weights there are is known only when the models have been built. No TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from trainer.annotations import Gt
from trainer.config.options import constraints, targets
from trainer.config.options.constraints import format_value
from trainer.config.schema import Experiment

_TIMES = re.compile(r"\d+(\.\d*)?(e-?\d+)?x")
CLIPS = ("clip_norm", "clip_value")
"""The options of a group of weights that clip its gradient."""


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    train = experiment.train
    rename = experiment.init_rename
    if rename is not None and not isinstance(rename, Mapping):
        yield (
            f"init_rename ({format_value(rename)}) must be a mapping from regular expressions to "
            "what replaces them, such as {backbone/: encoder/}"
        )
        rename = None
    rename = rename or {}
    for key, patterns in (
        ("train.freeze", train.freeze),
        ("train.lora.layers", train.lora.layers),
        ("init_allow", experiment.init_allow),
        ("init_rename", rename),
    ):
        yield from _check_patterns(key, patterns)
    yield from _check_initial(experiment, rename)
    yield from _check_one_clip("train", {name: getattr(train, name) for name in CLIPS})
    yield from _check_groups(experiment.optimizer, "optimizer")
    task = experiment.task if isinstance(experiment.task, Mapping) else {}
    for name, group in targets.node_groups(task.get("_target_")).items():
        if group == "optimizer":
            yield from _check_groups(task.get(name), f"task.{name}")


def _check_groups(node: Any, key: str) -> Iterator[str]:
    """Check the groups of an optimizer; those that are no mapping are reported elsewhere."""
    groups = node.get("groups") if isinstance(node, Mapping) else None
    if not isinstance(groups, Mapping):
        return
    yield from _check_patterns(f"{key}.groups", groups)
    for pattern, options in groups.items():
        name = f"{key}.groups.{pattern}"
        if not isinstance(options, Mapping) or not options:
            yield (
                f"{name} ({format_value(options)}) must be a mapping from options to values, such "
                "as {learning_rate: 10x}"
            )
            continue
        yield from _check_rate(name, options.get("learning_rate"))
        clips = {key: options.get(key) for key in CLIPS}
        for key in CLIPS:
            if line := constraints.check_value(f"{name}.{key}", clips[key], Gt(0)):
                yield line
        yield from _check_one_clip(name, clips)
        own = {key: value for key, value in options.items() if key not in CLIPS}
        own.pop("learning_rate", None)  # checked above
        yield from targets.check(
            {"_target_": node.get("_target_"), **own}, name, "optimizer.groups"
        )


def _check_rate(key: str, value: Any) -> Iterator[str]:
    is_factor = isinstance(value, str) and _TIMES.fullmatch(value) is not None
    if not is_factor and (isinstance(value, str) or constraints.violation(value, [Gt(0)])):
        yield (
            f"{key}.learning_rate ({value}) must be a number > 0, or a multiple of the common rate "
            "such as 10x"
        )


def _check_one_clip(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    if None not in values.values():
        yield (
            f"{key}.clip_norm ({values['clip_norm']}) and {key}.clip_value "
            f"({values['clip_value']}) are both set, at most one may be; add {key}.clip_value=null"
        )


def _check_patterns(key: str, patterns: Any) -> Iterator[str]:
    for pattern in patterns:
        try:
            re.compile(str(pattern))
        except re.error as error:
            yield f"{key} ('{pattern}') is no regular expression: {error}"


def _check_initial(experiment: Experiment, rename: Mapping[str, Any]) -> Iterator[str]:
    """Check what goes with `init_from`; patterns that are wrong are reported elsewhere."""
    for key, patterns in (("init_allow", experiment.init_allow), ("init_rename", rename)):
        if patterns and experiment.init_from is None:
            names = ", ".join(map(str, patterns))
            yield f"{key} ({names}) needs init_from; add init_from=<run or file>"
    for pattern, replacement in rename.items():
        with suppress(re.error):
            compiled = re.compile(str(pattern))
            try:
                compiled.sub(replacement, "")
            except (re.error, IndexError, TypeError) as error:
                yield f"init_rename.{pattern} ({replacement}) is no replacement: {error}"
