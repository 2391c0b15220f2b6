"""What a run needs of an object store, and the store at an address."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from trainer.config import addresses

_T = TypeVar("_T")
_LONGEST_PAUSE_SECS = 30.0


class StoreError(OSError):
    """A request to a store has failed; it may have been carried out nevertheless."""

    def __init__(self, message: str, *, is_temporary: bool = True) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


class MissingObjectError(StoreError):
    """There is no object of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is missing", is_temporary=False)


class ConflictError(StoreError):
    """The object is not the version that was to be replaced."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has been replaced", is_temporary=False)


class Store(Protocol):
    """The objects below one address. Each method may raise a StoreError.

    The class is called with a bucket and a path in it, without slashes at its ends. Its constant
    `requires` names the package of its client, and what pip is to install.

    A store of another project is an entry point of that in the group `steadfast.stores`; its name
    is the scheme of the addresses: `abfs = "my_project.azure:AzureStore"`.
    """

    def read(self, name: str) -> tuple[bytes, str]:
        """Return the content of an object, and its version.

        Raises:
            MissingObjectError: there is none.
        """
        ...

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        """Replace one version of an object, return the new one; only one of all who try succeeds.

        Args:
            version: the version to replace; None: there must be none.

        Raises:
            ConflictError: there is another version, or none.
        """
        ...

    def upload(self, path: Path, name: str) -> None:
        """Make an object, as a whole, of a file."""
        ...

    def download(self, name: str, path: Path) -> None:
        """Make a file of an object.

        Raises:
            MissingObjectError: there is none.
        """
        ...

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects that begin so; it may be an older state."""
        ...

    def folders(self) -> list[str]:
        """Return the names, sorted, of the folders right below the address that have objects."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, which need not exist."""
        ...


def open_store(address: str) -> Store:
    """Return the store at an address, which `addresses.problem` has accepted.

    Raises:
        StoreError: there are no credentials, for example.
    """
    scheme, bucket, path = addresses.split(address)
    module, _, name = addresses.store_classes()[scheme].rpartition(".")
    store: Store = getattr(importlib.import_module(module), name)(bucket, path)
    return store


def retry(
    action: Callable[[], _T],
    budget_secs: float,
    sleep: Callable[[float], object] = time.sleep,
) -> _T:
    """Return what `action` returns; repeat it while it fails for a temporary reason.

    Raises:
        StoreError: it fails for good, or still after `budget_secs`.
    """
    deadline = time.monotonic() + budget_secs
    pause = 0.5
    while True:
        try:
            return action()
        except StoreError as error:
            if not error.is_temporary or time.monotonic() + pause > deadline:
                raise
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECS)
