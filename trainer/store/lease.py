"""The manifest of a run in an object store, and the lease on it.

`manifest.json` lists the checkpoints and files of the run, and who may change it:
the holder of the lease, by a number that grows with each holder. Everything is decided by one
operation of the store, which replaces one version of this object and no other:

- A commit is such a replacement, so a checkpoint exists when the manifest names it.
- Another holder takes over by such a replacement, so each later commit of the old holder finds
  another version and fails. No clock and no listing of the store takes part in that.

The holder replaces the manifest regularly (`renew`). Who waits for the lease watches whether that
happens, by its own clock alone. A wrong guess costs the old holder its run, never a checkpoint.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace

from trainer.files import component, inner_path
from trainer.store.object_store import ConflictError, MissingObjectError, Store, StoreError

MANIFEST = "manifest.json"
BEATS = 3
"""How often the holder renews its lease while another watches it before taking over."""
_POLL_SECS = 0.5
_TRIES = 5


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        number: of the lease; grows with each holder.
        is_free: whether the holder has given it up.
        beat: grows with each version of a holder, so that no two have the same content.
        checkpoints: step -> folder of the objects of the checkpoint.
        files: path in the run directory -> number of the lease under which it was uploaded.
    """

    number: int = 0
    holder: str = ""
    is_free: bool = True
    beat: int = 0
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_run(self) -> bool:
        """Whether a run has been saved there."""
        return "config.yaml" in self.files

    def encode(self) -> bytes:
        """Return the content of the object."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """Return the manifest of a content."""
        try:
            values = json.loads(content)
            folders = values.pop("checkpoints").items()
            steps = {int(step): component(folder) for step, folder in folders}
            files = {inner_path(name): int(number) for name, number in values.pop("files").items()}
            return cls(checkpoints=steps, files=files, **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # Perhaps on its way here: it may be read again.
            raise StoreError(f"{MANIFEST} is damaged: {error}") from error


class LeaseHeldError(Exception):
    """Another process uses the run."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder


class LeaseLostError(Exception):
    """Another process has taken over the run, or its manifest was removed.

    Attributes:
        holder: who; empty: the manifest is gone.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"taken over by {holder}" if holder else f"{MANIFEST} was removed")
        self.holder = holder


def read_manifest(store: Store) -> tuple[Manifest, str | None]:
    """Return the manifest and its version, or an empty one and None."""
    try:
        content, version = store.read(MANIFEST)
    except MissingObjectError:
        return Manifest(), None
    return Manifest.decode(content), version


def is_renewed(
    store: Store, version: str | None, lease_secs: float, sleep: Callable[[float], None]
) -> bool:
    """Return whether the holder of a lease shows within `lease_secs` that it lives."""
    try:
        _watch(store, version, lease_secs, sleep)
    except LeaseHeldError:
        return True
    return False


class Lease:
    """A lease that was acquired; any thread may use it.

    Attributes:
        before: the manifest that the lease was taken over with.
    """

    def __init__(self, store: Store, manifest: Manifest, version: str, before: Manifest) -> None:
        self.manifest = manifest
        self.before = before
        self._store = store
        self._version = version
        self._beat = manifest.beat
        self._mutex = threading.Lock()

    @classmethod
    def acquire(
        cls,
        store: Store,
        holder: str,
        ended: Collection[str],
        lease_secs: float,
        on_wait: Callable[[str], None] = lambda holder: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Lease:
        """Take the lease of a run.

        Args:
            ended: holders that have ended for sure.
            lease_secs: after how many seconds without a renewal the lease is taken over.

        Raises:
            LeaseHeldError: its holder lives, or another process has been faster.
            StoreError: the store fails.
        """
        before, version = read_manifest(store)
        # Its own name: an earlier attempt whose answer was lost.
        if not before.is_free and before.holder not in (*ended, holder):
            on_wait(before.holder)
            before, version = _watch(store, version, lease_secs, sleep)
        taken = replace(before, number=before.number + 1, holder=holder, is_free=False)
        try:
            return cls(store, taken, store.replace(MANIFEST, taken.encode(), version), before)
        except StoreError as error:
            # Also when the answer of a successful request was lost.
            now, version = read_manifest(store)
            if now == taken and version is not None:
                return cls(store, now, version, before)
            if isinstance(error, ConflictError) and version is not None:
                raise LeaseHeldError(now.holder) from error
            raise

    def renew(self) -> None:
        """Show that the holder lives.

        Raises:
            LeaseLostError: another process has taken over.
            StoreError: the store fails; the next change shows whether this one has arrived.
        """
        self.change(lambda manifest: manifest)

    def release(self) -> None:
        """Give up the lease; raises as `renew`."""
        self.change(lambda manifest: replace(manifest, is_free=True))

    def change(self, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the manifest; raises as `renew`."""
        with self._mutex:
            for _ in range(_TRIES):
                self._beat += 1
                changed = replace(change(self.manifest), beat=self._beat)
                try:
                    version = self._store.replace(MANIFEST, changed.encode(), self._version)
                except ConflictError:
                    # An earlier request of ours whose answer was lost, or another holder.
                    self._read_again()
                else:
                    self.manifest = changed
                    self._version = version
                    return
        raise StoreError(f"{MANIFEST} could not be replaced in {_TRIES} tries")

    def _read_again(self) -> None:
        now, version = read_manifest(self._store)
        was = self.manifest
        if version is None or (now.number, now.holder) != (was.number, was.holder):
            raise LeaseLostError(now.holder)
        self.manifest = now
        self._version = version


def _watch(
    store: Store, version: str | None, lease_secs: float, sleep: Callable[[float], None]
) -> tuple[Manifest, str | None]:
    """Wait until a holder has released its lease, or has not renewed it; return the manifest."""
    deadline = time.monotonic() + lease_secs
    while True:
        sleep(min(_POLL_SECS, lease_secs))
        is_over = time.monotonic() >= deadline  # before the read: it must be that old at least
        manifest, now = read_manifest(store)
        if manifest.is_free or (is_over and now == version):
            return manifest, now
        if now != version:
            raise LeaseHeldError(manifest.holder)
