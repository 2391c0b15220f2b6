"""What the word under the cursor may become: flags, groups and choices, keys and values. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.arguments import CFG, FLAGS
from trainer.choices import Choices
from trainer.markers import committed
from trainer.schema import USED, Experiment

_RUNS = ("resume", "init_from")


def candidates(words: Sequence[str], commands: Mapping[str, Sequence[str]]) -> list[str]:
    """Gives what the last word may become, sorted; nothing where only files would do, which the shell knows.

    Args:
        words: the words after the program's name up to the cursor; the last one may be empty.
        commands: the commands that may come first, each with the words that may follow it.
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
    found = _names(word.lstrip("+~"), before, config_dir)
    return _starting(word, [*(marks + name for name in found), *([] if before else commands)])


def _values(key: str, value: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Completes a value; of several, `a,b` or `[a,b`, the last."""
    typed = value[: max(value.rfind(","), value.rfind("[")) + 1]
    name = key.lstrip("+~")
    if name in (choices := Choices(config_dir, {})).groups():
        known: Iterable[str] = [*choices.of(name), *(_used(before) if name == "checkpoint" else [])]
    elif name in _RUNS:
        known = [*(["auto", "never"] if name == "resume" else []), *_runs(before)]
    else:
        known = _known(name, before, config_dir)
    return _starting(f"{key}={value}", [f"{key}={typed}{item}" for item in known])


def _known(name: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Gives the words that the schema allows, true and false, or the value as it is."""
    rule = _rules(Experiment, "").get(name) or ""
    if " | " in rule or " or " in rule:
        return [word for word in rule.removeprefix("each: ").replace(" or ", " | ").split(" | ") if word.isidentifier()]
    node: Any = _composed(before, config_dir)
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if isinstance(node, bool):
        return ["false", "true"]
    return [] if node is None or isinstance(node, Mapping | list) else [str(node)]


def _rules(schema: Any, path: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for item in fields(schema):
        factory: Any = item.default_factory
        if is_dataclass(factory):
            found |= _rules(factory, f"{path}{item.name}.")
        else:
            found[f"{path}{item.name}"] = item.metadata["rule"]
    return found


def _names(word: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Gives keys and groups, down to the next dot: `optimizer=` and `optimizer.`, then `optimizer.learning_rate=`."""
    node: Any = _composed(before, config_dir)
    parent = word.rpartition(".")[0]
    for part in parent.split(".") if parent else []:
        node = node.get(part) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping):
        return []
    path = f"{parent}." if parent else ""
    groups = Choices(config_dir, {}).groups() if not parent else []
    names = [name for name in node if not str(name).startswith("_") and name not in ("choices", *groups)]
    keys = [f"{path}{name}{'.' if isinstance(node[name], Mapping) else '='}" for name in names]
    return [*keys, *(f"{group}=" for group in groups), *(f"{group}." for group in groups if node.get(group))]


def _composed(before: Sequence[str], config_dir: str | None) -> Mapping[str, Any]:
    """Composes the words before; without those that are half done, or have several values."""
    from omegaconf import OmegaConf

    from trainer import composition  # only now: neither a choice nor a flag needs Hydra
    from trainer.explain import EXPECTED
    from trainer.overrides import rewrite

    given = [word for word in before if "=" in word and not word.startswith("-")]
    plain = [word for word in given if not any(mark in word for mark in ",(")]
    for overrides in (given, plain, []):
        try:
            found: Any = OmegaConf.to_container(composition.composed(*rewrite(overrides, config_dir))[0])
            return found
        except (*EXPECTED, RecursionError):
            continue
    return {}


def _config_dir(before: Sequence[str]) -> str | None:
    """Gives the user's own directory of choices, if it is there."""
    given = None
    for place, word in enumerate(before):
        if word.startswith("--config-dir="):
            given = word.partition("=")[2]
        elif word in ("--config-dir", "-cd") and place + 1 < len(before):
            given = before[place + 1]
    path = Path(given).expanduser() if given else None
    return str(path.absolute()) if path and path.is_dir() else None


def _runs(before: Sequence[str]) -> list[str]:
    folder = next((Path(word.partition("=")[2]) for word in reversed(before) if word.startswith("runs_dir=")), Path(Experiment().runs_dir))
    return [str(path.parent) for path in folder.expanduser().glob("*/config.yaml")]


def _used(before: Sequence[str]) -> list[str]:
    """Gives what `checkpoint=` takes besides the choices where a run is resumed: which of its checkpoints is used."""
    runs = [Path(word.removeprefix("resume=")).expanduser() for word in before if word.startswith("resume=")]
    return [*USED, *map(str, committed(runs[-1] / "checkpoints"))] if runs else []


def _starting(word: str, known: Iterable[str]) -> list[str]:
    return sorted({item for item in known if item.startswith(word)})
