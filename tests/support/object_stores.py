"""Object stores for tests: one in memory that fails on request, and a real S3 server."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

from trainer.runs import checkpoint_marker
from trainer.store.lease import Lease
from trainer.store.mirror import Mirror
from trainer.store.object_store import ConflictError, MissingObjectError, StoreError

START_SECS = 120

S3_SERVER = """
import sys
from moto.server import main
sys.stdout = sys.stderr = open(sys.argv.pop(1), "w", buffering=1)
main()
"""
"""A program that is an S3 server; its arguments: file of its log, and options of moto's."""

S3_READY = """
import sys, time, boto3, botocore
deadline = time.monotonic() + float(sys.argv[1])
while True:
    try:
        boto3.client("s3").create_bucket(Bucket="bucket")
        break
    except botocore.exceptions.EndpointConnectionError:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.1)
"""
"""A program that waits for the server so many seconds, and creates the bucket `bucket`."""


class MemoryStore:
    """A store in memory, as `trainer.store.object_store.Store` describes it.

    Args:
        before: called with the method before each request that changes something; it may raise, or
            return True: then the request is carried out, and its answer lost.
    """

    def __init__(self, before=lambda method: False):
        self.objects = {}
        self.before = before
        self.listed = None
        """What a listing returns, if it is an old one."""
        self._versions = 0

    def read(self, name):
        if name not in self.objects:
            raise MissingObjectError(name)
        return self.objects[name]

    def replace(self, name, content, version):
        is_lost = self.before("replace")
        if self.objects.get(name, (b"", None))[1] != version:
            raise ConflictError(name)
        new = self._put(name, content)
        if is_lost:
            raise StoreError("the answer was lost")
        return new

    def upload(self, path, name):
        is_lost = self.before("upload")
        self._put(name, path.read_bytes())
        if is_lost:
            raise StoreError("the answer was lost")

    def download(self, name, path):
        path.write_bytes(self.read(name)[0])

    def names(self, prefix):
        names = self.objects if self.listed is None else self.listed
        return [name for name in names if name.startswith(prefix)]

    def folders(self):
        return sorted({name.partition("/")[0] for name in self.objects if "/" in name})

    def delete(self, names):
        for name in names:
            self.before("delete")
            self.objects.pop(name, None)

    def _put(self, name, content):
        self._versions += 1
        self.objects[name] = (content, str(self._versions))
        return str(self._versions)


def write_checkpoint(run_dir, step, keep=2):
    """Commit a checkpoint as the worker does, and apply its retention."""
    directory = run_dir / "checkpoints"
    directory.mkdir(parents=True, exist_ok=True)
    prefix = checkpoint_marker.begin_write(directory, step)
    for suffix in (".index", ".data-00000-of-00001"):
        (directory / f"{prefix}{suffix}").write_bytes(f"{step}{suffix}".encode() * 10)
    checkpoint_marker.commit(directory, step, None)
    for old in checkpoint_marker.committed_steps(directory)[:-keep]:
        checkpoint_marker.remove(directory, old)


def upload_run(store, run_dir, holder):
    """Upload a run as a command does whose lease has a holder; return the lease."""
    lease = Lease.acquire(store, holder, (), 60.0)
    Mirror(store, lease, run_dir, 0.0, lambda line: None, lambda: None)._upload()
    return lease


def s3_environment(port):
    """Return the variables with which clients use the S3 server at a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server(folder):
    """Run a real S3 server with a bucket called `bucket`; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python, log = [sys.executable, "-c"], folder / "s3.log"
    process = subprocess.Popen([*python, S3_SERVER, log, "-H", "127.0.0.1", "-p", str(port)])
    try:
        environment = {**os.environ, **s3_environment(port)}
        subprocess.run([*python, S3_READY, str(START_SECS)], env=environment, check=True)
        yield port
    finally:
        process.kill()
        process.wait()
