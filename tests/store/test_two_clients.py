"""Commands on several machines that use one run in a store: never do two of them commit.

The real lease, mirror and download of each run in a thread of their own; only one goes on at a
time, and a seed draws which. So requests are carried out in any order, answers are lost, a request
comes long after its client has given it up, a client is killed or stands still, and its clock runs
fast or slow.
"""

import hashlib
import json
import os
import random
import shutil
import threading
import time
from contextlib import suppress

import pytest

from tests.support.object_stores import MemoryStore, write_checkpoint
from trainer.runs.checkpoint_marker import committed_steps
from trainer.store import remote_files
from trainer.store.lease import Lease, LeaseHeldError, LeaseLostError, read_manifest
from trainer.store.mirror import Mirror
from trainer.store.object_store import ConflictError, StoreError, retry

LEASE_SECS = 6.0
SCHEDULES = 150


class KilledError(BaseException):
    """The client was killed."""


class Client(threading.Thread):
    """A command on a machine of its own; also its store, and its clock.

    Attributes:
        saved: the newest step of which the store has said that it has it.
    """

    def __init__(self, world, name):
        super().__init__(name=name, daemon=True)
        self.world, self.path = world, world.folder / name
        self.pace = world.draw.choice([0.3, 1.0, 3.0])
        self.turn = threading.Semaphore(0)
        self.lives = 1 + world.draw.randrange(3)
        self.saved = 0
        self.error = None

    def run(self):
        self.turn.acquire()
        while self.lives and self.error is None:
            self.lives -= 1
            try:
                self._live(f"{self.name}-{self.lives}")
            except (KilledError, LeaseHeldError, LeaseLostError, StoreError):
                self.path = self.path.with_name(f"{self.name}-{self.lives}")
            except BaseException as error:
                self.error = error
        self.world.running.remove(self)
        self.world.idle.release()

    def _live(self, holder):
        """Do what a command does: take the run, bring it here, save, and give it up."""
        lease = retry(
            lambda: Lease.acquire(self, holder, (), LEASE_SECS, sleep=self.sleep), 99, self.sleep
        )
        shutil.rmtree(self.path, ignore_errors=True)
        missing = retry(
            lambda: remote_files.download(self, lease.before, self.path), 99, self.sleep
        )
        assert not missing or self.world.last.holder != holder, missing
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.yaml").write_text("a: 1\n")
        metrics = self.path / "metrics.jsonl"
        mirror = Mirror(self, lease, self.path, 0.0, lambda line: None, lambda: None)
        first = max(committed_steps(self.path / "checkpoints"), default=0) + 1
        for step in range(first, first + self.world.draw.randrange(1, 5)):
            with metrics.open("a") as file:
                file.write(f"{step}\n")
            write_checkpoint(self.path, step)
            retry(mirror._upload, 99, self.sleep)
            self.saved = step
            with suppress(StoreError):
                lease.renew()
        lease.release()

    def clock(self):
        return self.world.now * self.pace

    def sleep(self, secs):
        """Run the others until the time is over by the clock of this machine."""
        end = self.clock() + secs
        while self.clock() < end:
            self.pause()

    def pause(self):
        """Run one client, perhaps others first."""
        self.world.idle.release()
        self.turn.acquire()
        if self.world.draw.random() < 0.01:
            raise KilledError

    def read(self, name):
        self.pause()
        return self.world.store.read(name)

    def download(self, name, path):
        self.pause()
        self.world.store.download(name, path)

    def names(self, prefix):
        return self.world.draw.choice([[], self.world.store.names(prefix)])  # an old listing

    def upload(self, path, name):
        content = path.read_bytes()  # a request that comes late brings what was sent
        can_be_late = name.startswith("checkpoints/")  # the others may be sent again, longer
        self._send(lambda: self.world.store.put(name, content), can_be_late)

    def delete(self, names):
        for name in list(names):
            self._send(lambda name=name: self.world.store.objects.pop(name, None))

    def replace(self, name, content, version):
        return self._send(lambda: self.world.store.replace(name, content, version))

    def _send(self, request, can_be_late=True):
        self.pause()
        fate = self.world.draw.random()
        if fate < 0.05 and can_be_late:
            self.world.late.append(request)
        elif fate > 0.1:
            answer = request()
            self.pause()
            if fate > 0.15:
                return answer
        raise StoreError("no answer")


class ContentStore(MemoryStore):
    """Versions are hashes of the content, as those of S3 are: one that returns is the same one."""

    def put(self, name, content):
        self.objects[name] = (content, hashlib.md5(content).hexdigest())
        return self.objects[name][1]

    _put = put


class World:
    """Machines with a store in common. After each turn it checks what must hold, see `check`."""

    def __init__(self, folder, seed):
        self.folder, self.draw = folder, random.Random(seed)
        self.now = 0.0
        self.idle = threading.Semaphore(0)
        self.store, self.late, self.current = ContentStore(), [], None
        self.clients = [Client(self, name) for name in ("a", "b")]
        self.running = list(self.clients)
        self.holders, self.last, self.whole = {}, read_manifest(self.store)[0], set()

    def play(self):
        for client in self.clients:
            client.start()
        while self.running:
            # Often the same one again: then the others stand still for long.
            if self.current not in self.running or self.draw.random() < 0.3:
                self.current = self.draw.choice(self.running)
            self.now += self.draw.expovariate(4.0)
            if self.late and self.draw.random() < 0.05:
                with suppress(ConflictError):
                    self.late.pop(self.draw.randrange(len(self.late)))()
                self.check()
            self.current.turn.release()
            self.idle.acquire()
            self.check()

    def check(self):
        manifest, _ = read_manifest(self.store)
        newest = [max(x.checkpoints, default=0) for x in (self.last, manifest)]
        assert newest == sorted(newest), "a commit was lost"
        if manifest != self.last:
            assert manifest.number >= self.last.number, "an earlier holder has committed"
            assert self.holders.setdefault(manifest.number, manifest.holder) == manifest.holder
            self.last = manifest
        for client in self.clients:
            assert newest[1] >= client.saved, "it is not saved"
            if client.error:
                raise client.error
        objects = self.store.objects
        for name in manifest.files:
            content, _ = objects[remote_files.file_object(manifest, name)]
            is_curve = name == "metrics.jsonl"
            assert not is_curve or int(content.split()[-1]) >= newest[1], "the curve ends too early"
        for step, folder in manifest.checkpoints.items():
            content = objects[f"checkpoints/{folder}/ckpt-{step}.json"][0]
            assert folder == remote_files.folder_of(step, hashlib.sha256(content).hexdigest())
            for name in json.loads(content)["files"]:
                assert f"checkpoints/{folder}/{name}" in objects


@pytest.fixture
def own_clocks(monkeypatch):
    """Let each thread of a client see its clock, and no file be flushed: no power is cut here."""
    monotonic = time.monotonic

    def clock():
        thread = threading.current_thread()
        return thread.clock() if isinstance(thread, Client) else monotonic()

    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("first", range(0, SCHEDULES, 50))
def test_only_one_commits_and_what_it_has_saved_stays(tmp_path, own_clocks, first):
    """After each turn of a client `World` checks it."""
    for seed in range(first, first + 50):
        World(tmp_path / str(seed), seed).play()
