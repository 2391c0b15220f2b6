"""Hands the group `augment` to the datasets that take it. No TensorFlow.

A dataset takes it by a parameter `augment`. The datasets that a dataset is made of, `_target_`
nodes in its options, get it likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config.options import targets
from trainer.config.schema import Experiment


def check(experiment: Experiment) -> Iterator[str]:
    """Yield a line if the dataset does not take the chosen augmentation, or has it set itself."""
    nodes = list(_nodes(experiment.dataset, "dataset"))
    for key, node in nodes:
        if "augment" in node and targets.takes(node["_target_"], "augment"):
            yield f"{key}.augment is set by the group augment; write augment.<option>=<value>"
    takes = [_takes(node, is_outermost=key == "dataset") for key, node in nodes]
    if nodes and _is_active(experiment.augment) and not any(takes):
        options = ", ".join(f"augment.{name}" for name in _active(experiment.augment))
        yield (
            f"dataset ({experiment.dataset['_target_']}) takes no augmentation, but {options} is "
            "set; add augment=none"
        )


def augmented(dataset: Any, augment: Any) -> Any:
    """Return a dataset's node with the augmentation's in it, wherever it is taken.

    Args:
        dataset: the node, as plain containers.
        augment: that of the group; None: there is none.
    """
    return dataset if augment is None else _augmented(dataset, augment, is_outermost=True)


def _augmented(value: Any, augment: Any, *, is_outermost: bool = False) -> Any:
    if isinstance(value, list):
        return [_augmented(item, augment) for item in value]
    if not isinstance(value, Mapping):
        return value
    node = {name: _augmented(item, augment) for name, item in value.items()}
    taken = _takes(node, is_outermost=is_outermost) and "augment" not in node
    # One that takes any option may pass it on to one that does not.
    is_known = taken and targets.takes(node["_target_"], "augment")
    return {**node, "augment": augment} if is_known or (taken and _is_active(augment)) else node


def _takes(node: Mapping[str, Any], *, is_outermost: bool) -> bool:
    """Return whether a node takes an augmentation; the outermost also if only a call can tell."""
    if not isinstance(node.get("_target_"), str):
        return False
    taken = targets.takes(node["_target_"], "augment")
    return is_outermost if taken is None else taken


def _nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the key and the node of each `_target_`, from the outside in."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nodes(item, f"{key}[{index}]")
    elif isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str):
            yield key, value
        for name, item in value.items():
            yield from _nodes(item, f"{key}.{name}")


def _active(augment: Any) -> list[str]:
    """Return the options that change something: those that are not off, 0 or null."""
    if not isinstance(augment, Mapping):
        return []
    return [name for name, value in augment.items() if value and name != "_target_"]


def _is_active(augment: Any) -> bool:
    return bool(_active(augment))
