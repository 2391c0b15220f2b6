"""The arguments of `fit` as overrides of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config.schema import PAIRS
from trainer.errors import ConfigError

_INSTEAD = {
    "callbacks": "name what does the same: callbacks='early_stopping', checkpoint__best__metric="
    "'accuracy', schedule='cosine'; a Keras callback that only reads is callbacks='keras'",
    "class_weight": "write task__class_weights={0: 1.0, 1: 5.0}, the weight by class",
    "initial_epoch": "leave it out: a run continues where it stopped; epochs is the length of all",
    "sample_weight": "make it the third of the data: (x, y, sample_weight)",
    "shuffle": "leave it out: as the program does; dataset__unit=0 keeps the order of arrays",
    "validation_batch_size": "leave it out: an evaluation takes batches of batch_size",
    "validation_data": "write validation=(x, y)",
    "validation_freq": "write evaluate__every_epochs=<int>",
    "validation_split": "write validation=<share>; which examples it takes does not depend on "
    "their order",
    "validation_steps": "leave it out: the validation examples are evaluated whole",
    "verbose": "leave it out; progress is printed, and run.history has the numbers",
    "x": "write fit(model, (x, y))",
    "y": "write fit(model, (x, y))",
}
"""Arguments of `model.fit`, and what does the same here."""

_PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[A-Za-z_./][\w./-]*", re.IGNORECASE)


def overrides_of(keys: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the overrides of some keys, which win over defaults.

    Args:
        keys: values by key, in which `__` stands for a dot; a dict has the keys of a section.
        defaults: values by dotted key.

    Raises:
        ConfigError: one is an argument of `model.fit`.
    """
    for name, value in keys.items():
        is_choice = name == "callbacks" and isinstance(value, str | Mapping)
        if name in _INSTEAD and not is_choice:
            raise ConfigError(f"{name} is an argument of model.fit; here {_INSTEAD[name]}")
    chosen = dict(_flat(keys))
    others = {**dict(PAIRS), **{second: first for first, second in PAIRS}}
    left = {
        key: value
        for key, value in defaults.items()
        if key not in chosen and others.get(key) not in chosen
    }
    return [_override(key, value) for key, value in {**left, **chosen}.items()]


def _flat(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in keys.items():
        key = name.replace("__", ".")
        is_section = isinstance(value, Mapping) and all(str(x).isidentifier() for x in value)
        if is_section and "." not in key:
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value


def _override(key: str, value: Any) -> str:
    # Nodes with a _target_ have options that no file mentions.
    plus = "++" if "." in key else ""
    return f"{plus}{key}={_text(value)}"


def _text(value: Any) -> str:
    """Return a value in the grammar of overrides.

    Raises:
        ConfigError: it is nothing that a configuration holds.
    """
    if hasattr(value, "dtype") and not value.shape:  # a number of NumPy
        value = value.item()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return value if _PLAIN.fullmatch(value) else f"'{quoted}'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        # Keys cannot be quoted.
        names = (re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)) for key in value)
        pairs = zip(names, map(_text, value.values()), strict=True)
        return f"{{{','.join(f'{name}:{text}' for name, text in pairs)}}}"
    raise ConfigError(
        f"{type(value).__name__} is nothing that a configuration holds; write numbers, texts, "
        "lists and dicts of these, or the name of a choice"
    )
