"""The command `convert dataset=... to=tfrecord out=...`: writes a dataset as TFRecord files.

The dataset and the writer are imported when it runs, and with them TensorFlow.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.annotations import Gt
from trainer.cli.commands.command_arguments import Parser
from trainer.cli.compose import compose
from trainer.cluster import environment
from trainer.config.instantiate import instantiate
from trainer.config.options.constraints import check_value, did_you_mean
from trainer.errors import DONE, ConfigError
from trainer.files import Lock, LockedError, writing
from trainer.protocols import IN_WORDS, Fitted, label_kind_of

_FORMATS = ("tfrecord",)
_SHARD_MB = 128


def run(arguments: Sequence[str]) -> int:
    """Convert the dataset that the arguments name; continue where a killed command stopped.

    Raises:
        ConfigError: an argument or the dataset is wrong.
        StorageError: a file cannot be written.
    """
    parser = Parser(
        "convert",
        f"shard_mb={_SHARD_MB} is about how many MB a file has. The same command continues after a "
        "kill. The folder is then read with `dataset=tfrecord dataset.path=<folder>`.",
    )
    words = f"to={'|'.join(_FORMATS)}, out=<folder>, and the choice and keys of dataset"
    parser.add_argument("arguments", nargs="+", metavar="key=value", help=words)
    own, overrides = _divide(parser.parse_args(arguments).arguments)
    folder, shard_bytes = _check(own)
    experiment = compose(overrides)
    environment.prepare_environment()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock.acquire(folder / ".lock")
    except LockedError as error:
        raise ConfigError(f"out ({folder}) is being written by process {error.holder}") from error
    try:
        with _native_messages_hidden():
            _convert(experiment.dataset, folder, shard_bytes)
    finally:
        lock.close()
    return DONE


@contextmanager
def _native_messages_hidden() -> Iterator[None]:
    """Hide what TensorFlow's C++ code writes to the standard error when it starts."""
    sys.stderr.flush()
    kept = os.dup(2)
    before = sys.stderr
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    sys.stderr = os.fdopen(kept, "w", buffering=1, closefd=False)
    try:
        yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)


def _convert(node: Mapping[str, Any], folder: Path, shard_bytes: int) -> None:
    dataset = instantiate(node, "dataset", leave_out=("validation",))
    _check_labels(dataset)
    # By name: packages of the trainer do not import datasets.
    conversion = importlib.import_module("trainer.datasets.records.conversion")
    try:
        with writing(folder):
            kept = conversion.Conversion(
                dataset,
                folder,
                shard_bytes=shard_bytes,
                source=json.loads(json.dumps(node, default=str)),
                announce=lambda line: print(line, flush=True),
            ).run()
    except ValueError as error:
        text = str(error)
        raise ConfigError(text if text.startswith("out") else f"convert: {text}") from error
    if kept:
        print(f"{kept} file{'s were' if kept > 1 else ' was'} there from before.")
    print(f"Read it with: dataset=tfrecord dataset.path={folder}")


def _check_labels(dataset: Any) -> None:
    """Raise unless a dataset has examples of one class each, without a run to fit it.

    Raises:
        ConfigError: it has not.
    """
    if isinstance(dataset, Fitted):
        raise ConfigError(
            "convert: the dataset is fitted to its training split by a run, as a table is; train "
            "on its files as they are"
        )
    if (kind := label_kind_of(dataset)) != "class":
        raise ConfigError(
            f"convert: records hold one class an example, the labels are {IN_WORDS[kind]}; train "
            "on the dataset as it is"
        )


def _divide(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the command's own arguments, and the overrides of the dataset."""
    own: dict[str, str] = {}
    overrides: list[str] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        group = key.lstrip("+~").partition(".")[0].partition("@")[0].partition("/")[0]
        if key in ("to", "out", "shard_mb") and equals:
            own[key] = value
        elif group == "dataset":
            overrides.append(argument)
        else:
            hint = did_you_mean(key, ["to", "out", "shard_mb", "dataset"])
            raise ConfigError(
                f"convert ({argument}) must be to=<format>, out=<folder>, shard_mb=<MB> or an "
                f"override of dataset{hint}"
            )
    return own, overrides


def _check(own: dict[str, str]) -> tuple[Path, int]:
    """Return the folder, and the bytes of a file.

    Raises:
        ConfigError: an argument is missing or wrong.
    """
    words = " | ".join(_FORMATS)
    if own.get("to") not in _FORMATS:
        hint = did_you_mean(own.get("to", ""), _FORMATS)
        raise ConfigError(f"to ({own.get('to', 'missing')}) must be one of {words}{hint}")
    if not own.get("out"):
        raise ConfigError("out (missing) must name a folder; add out=<folder>")
    text = own.get("shard_mb", str(_SHARD_MB))
    shard_mb = float(text) if text.replace(".", "", 1).isdigit() else None
    problem = check_value("shard_mb", shard_mb if shard_mb is not None else text, Gt(0))
    if problem or shard_mb is None:
        raise ConfigError(problem or f"shard_mb ({text}) must be > 0")
    return Path(own["out"]).expanduser(), int(shard_mb * 1e6)
