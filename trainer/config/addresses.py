"""Addresses in object stores: `s3://bucket/folder`. No client is imported."""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from trainer.config.options import targets
from trainer.text import did_you_mean

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
_SCHEMES = "trainer.store.schemes"
"""The package of our own stores: a module for each scheme, and in `s3` the class `S3Store`."""
_ENTRY_POINTS = "steadfast.stores"
"""The group in which another project names its stores, by their schemes."""


def is_remote(folder: str) -> bool:
    """Return whether a folder is in an object store."""
    return _ADDRESS.fullmatch(folder) is not None


def split(address: str) -> tuple[str, str, str]:
    """Return scheme, bucket, and the path there, without slashes at its ends."""
    match = _ADDRESS.fullmatch(address)
    assert match is not None, f"{address} is no address"
    bucket, _, path = match[2].partition("/")
    return match[1], bucket, path.strip("/")


def join(address: str, name: str) -> str:
    """Return the address of what is called `name` in a folder."""
    return f"{address.rstrip('/')}/{name}"


def work_folder(work_dir: str, address: str) -> Path:
    """Return the folder of this machine in which the run at an address works."""
    return Path(work_dir).expanduser().joinpath(*split(address))


def problem(key: str, address: str) -> str | None:
    """Return why no run can be kept at an address, or None if one can."""
    scheme, bucket, path = split(address)
    classes = store_classes()
    if scheme not in classes:
        schemes = " or ".join(f"{name}://" for name in sorted(classes, reverse=True))
        return (
            f"{key} ({address}): no runs are kept in {scheme}://{did_you_mean(scheme, classes)}; "
            f"use {schemes}, or a mounted folder"
        )
    if not bucket or ".." in path.split("/"):
        return f"{key} ({address}) must name a bucket and a folder; write {scheme}://bucket/runs"
    if missing := targets.missing_package(classes[scheme]):
        return f"{key} ({address}) {missing}"
    return None


@functools.cache
def store_classes() -> Mapping[str, str]:
    """Return the dotted path of the class that keeps objects, by the scheme of its addresses."""
    package = importlib.util.find_spec(_SCHEMES)
    folders = package.submodule_search_locations if package else None
    own = [module.name for module in pkgutil.iter_modules(folders or [])]
    return {
        **{name: f"{_SCHEMES}.{name}.{name.capitalize()}Store" for name in own},
        **{
            point.name: point.value.replace(":", ".") for point in entry_points(group=_ENTRY_POINTS)
        },
    }
