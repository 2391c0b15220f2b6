"""Completes the word at the cursor: flags, groups and choices, keys and values. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.annotations import OneOf, Rule
from trainer.cli.arguments import CFG, FLAGS
from trainer.cli.choices import Choices
from trainer.config.schema import USED, Experiment
from trainer.runs.checkpoint_marker import committed_steps

_RUN_KEYS = ("resume", "init_from")
"""Keys whose value is a run directory."""


def completions(words: Sequence[str], commands: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the completions of the last word, sorted.

    It is empty for a path, which the shell completes.

    Args:
        words: the words after the program's name up to the cursor; the last one may be empty.
        commands: what may be the first word, each with the words that may follow it.
    """
    *before, word = words or [""]
    if before and before[0] in commands:
        return _starting(word, commands[before[0]])
    if before and before[-1] in ("--cfg", "-c"):
        return _starting(word, CFG)
    if word.startswith("-"):
        return _starting(word, FLAGS)
    config_dir = _config_dir(before)
    if "=" in word:
        key, _, value = word.partition("=")
        return _values(key, value, before, config_dir)
    marks = word[: len(word) - len(word.lstrip("+~"))]
    names = _names(word.lstrip("+~"), before, config_dir)
    return _starting(word, [*(marks + name for name in names), *([] if before else commands)])


def _values(key: str, value: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Complete a value; of several, `a,b` or `[a,b`, the last."""
    typed = value[: max(value.rfind(","), value.rfind("[")) + 1]
    name = key.lstrip("+~")
    if name.partition("@")[0].partition("/")[0] in (choices := Choices(config_dir, {})).groups():
        saved = _checkpoints(before) if name == "checkpoint" else []
        values: Iterable[str] = [*choices.of(name), *saved]
    elif name in _RUN_KEYS:
        values = [*(["auto", "never"] if name == "resume" else []), *_runs(before)]
    else:
        values = _key_values(name, before, config_dir)
    return _starting(f"{key}={value}", [f"{key}={typed}{item}" for item in values])


def _key_values(name: str, before: Sequence[str], config_dir: str | None) -> Sequence[str]:
    """Return the words that the schema allows, true and false, or the present value."""
    choices = [rule for rule in _rules(name) if isinstance(rule, OneOf)]
    if choices:
        return choices[0].words
    node: Any = _composed(before, config_dir)[0]
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if isinstance(node, bool):
        return ["false", "true"]
    return [] if node is None or isinstance(node, Mapping | list) else [str(node)]


def _rules(key: str) -> tuple[Rule, ...]:
    """Return the rules of a key of the schema."""
    schema: Any = Experiment
    item: Field[Any] | None = None
    for part in key.split("."):
        names = {item.name: item for item in fields(schema)} if is_dataclass(schema) else {}
        item = names.get(part)
        schema = item and item.default_factory
    return item.metadata["rules"] if item else ()


def _names(word: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Return keys and groups down to the next dot: `optimizer=` and `optimizer.`."""
    node: Any
    node, chosen = _composed(before, config_dir)
    places = [f"{group}@{place}=" for place, group in Choices(config_dir, chosen).places().items()]
    if "@" in word:
        return places
    parent = word.rpartition(".")[0]
    for part in parent.split(".") if parent else []:
        node = node.get(part) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping):
        return []
    path = f"{parent}." if parent else ""
    groups = Choices(config_dir, {}).groups() if not parent else []
    names = [
        name for name in node if not str(name).startswith("_") and name not in ("choices", *groups)
    ]
    keys = [f"{path}{name}{'.' if isinstance(node[name], Mapping) else '='}" for name in names]
    return [
        *keys,
        *(places if not parent else []),
        *(f"{group}=" for group in groups),
        *(f"{group}." for group in groups if node.get(group)),
    ]


def _composed(
    before: Sequence[str], config_dir: str | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Compose the words before, if need be without those that are incomplete or a sweep.

    Returns:
        The configuration, and the choice in each group.
    """
    from omegaconf import OmegaConf

    from trainer.cli.compose import compose_config, split_hydra
    from trainer.cli.error_messages import USER_ERRORS
    from trainer.cli.overrides import rewrite

    words = [word for word in before if "=" in word and not word.startswith("-")]
    single = [word for word in words if not any(mark in word for mark in ",(")]
    for overrides in (words, single, []):
        try:
            composition = split_hydra(compose_config(*rewrite(overrides, config_dir)))
            container: Any = OmegaConf.to_container(composition.config)
            return container, composition.choices
        except (*USER_ERRORS, RecursionError):
            continue
    return {}, {}


def _config_dir(before: Sequence[str]) -> str | None:
    """Return the user's directory of choices, if it exists."""
    directory = None
    for index, word in enumerate(before):
        if word.startswith("--config-dir="):
            directory = word.partition("=")[2]
        elif word in ("--config-dir", "-cd") and index + 1 < len(before):
            directory = before[index + 1]
    path = Path(directory).expanduser() if directory else None
    return str(path.absolute()) if path and path.is_dir() else None


def _runs(before: Sequence[str]) -> list[str]:
    folder = next(
        (Path(word.partition("=")[2]) for word in reversed(before) if word.startswith("runs_dir=")),
        Path(Experiment().runs_dir),
    )
    return [str(path.parent) for path in folder.expanduser().glob("*/config.yaml")]


def _checkpoints(before: Sequence[str]) -> list[str]:
    """Return the checkpoints of the resumed run, which `checkpoint=` takes besides the choices."""
    runs = [
        Path(word.removeprefix("resume=")).expanduser()
        for word in before
        if word.startswith("resume=")
    ]
    return [*USED, *map(str, committed_steps(runs[-1] / "checkpoints"))] if runs else []


def _starting(word: str, candidates: Iterable[str]) -> list[str]:
    return sorted({item for item in candidates if item.startswith(word)})
