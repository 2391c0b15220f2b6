"""Addresses of stores: `s3://bucket/folder`, `gs://bucket/folder`. No client is imported."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from trainer.config.options.constraints import did_you_mean

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
_CLIENTS = {
    "s3": ("boto3", "s3"),
    "gs": ("google.cloud.storage", "gcs"),
}
"""Scheme -> the module of its client, and our extra that installs it."""


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
    """Return why no run can be kept at an address, or None if one can.

    Args:
        key: the key that has the address.
        address: the address.
    """
    scheme, bucket, path = split(address)
    if scheme not in _CLIENTS:
        hint = did_you_mean(scheme, _CLIENTS)
        return (
            f"{key} ({address}): there are no runs in {scheme}://{hint}; use s3:// or gs://, "
            "of which two writers cannot replace the same version, or a mounted folder"
        )
    if not bucket or ".." in path.split("/"):
        return f"{key} ({address}) must name a bucket and a folder; write {scheme}://bucket/runs"
    module, extra = _CLIENTS[scheme]
    if not _is_installed(module):
        return (
            f"{key} ({address}) needs {module}, which is not installed; "
            f"pip install 'steadfast[{extra}]'"
        )
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False
