"""Network namespaces with real processes: a server inside is reached from inside alone."""

import os
import select
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

from tests.support.processes import ROOT, wait_gone
from trainer.cli import compose
from trainer.cluster import environment, network_namespace
from trainer.cluster.network_namespace import IsolationError, Namespace
from trainer.config import loading

TIMEOUT_SECS = 60
SERVER = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    while True:
        server.accept()[0].close()
"""

CLIENT = """
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
print("reached")
"""


@pytest.fixture(scope="module")
def namespace():
    try:
        created = Namespace()
    except IsolationError as error:
        pytest.skip(str(error))
    with created:
        yield created


def run(command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECS, check=False, **options
    )


@contextmanager
def started(command, **options):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_SECS)


def line_of(process):
    assert select.select([process.stdout], [], [], TIMEOUT_SECS)[0], f"{process.args} says nothing"
    return process.stdout.readline().strip()


def free_ports():
    with socket.socket() as first, socket.socket() as second:
        first.bind(("", 0))
        second.bind(("", 0))
        return str(first.getsockname()[1]), str(second.getsockname()[1])


def is_open(port):
    """Return whether a port is open outside, at 127.0.0.2: the server was given 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.2", int(port)), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_server_inside_is_reached_from_inside_alone(namespace):
    inner, outer = free_ports()
    with (
        started(namespace.command([sys.executable, "-c", SERVER, inner])) as within,
        started([sys.executable, "-c", SERVER, outer]) as control,
    ):
        assert [line_of(within), line_of(control)] == ["ready", "ready"]
        assert run(namespace.command([sys.executable, "-c", CLIENT, inner])).stdout == "reached\n"
        assert not is_open(inner)
        assert is_open(outer)
        refused = run(namespace.command([sys.executable, "-c", CLIENT, outer]))
        assert "ConnectionRefusedError" in refused.stderr


def test_namespace_ends_when_its_parent_is_killed(namespace):
    parent = """
import subprocess
from trainer.cluster.network_namespace import Namespace
namespace = Namespace()
command = namespace.command(["sh", "-c", "echo $$ $(readlink /proc/self/ns/net); exec cat"])
subprocess.Popen(command, stdin=subprocess.PIPE).wait()
"""
    with started([sys.executable, "-c", parent], cwd=ROOT) as process:
        child, link = line_of(process).split()
        assert link != os.readlink("/proc/self/ns/net")
        assert members(link) == [int(child)]
        process.kill()
        wait_gone(int(child))
        assert members(link) == []


def members(link):
    """Return the processes in a network namespace."""
    processes = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has just ended, or is another user's
            if os.readlink(f"/proc/{name}/ns/net") == link:
                processes.append(int(name))
    return processes


def test_command_never_runs_outside(tmp_path):
    try:
        namespace = Namespace()
    except IsolationError as error:
        pytest.skip(str(error))
    with namespace:
        command = namespace.command(["touch", str(tmp_path / "file")])
    done = run(command)
    assert done.returncode == 1
    assert "No such file or directory: '/proc/" in done.stderr
    assert not (tmp_path / "file").exists()
    with pytest.raises(ValueError, match="closed"):
        namespace.command(["true"])


def test_needs_network_names_the_key():
    experiment = loading.plain(compose.compose(["callbacks=early_stopping"]))
    assert network_namespace.needs_network(experiment) is None
    local = {"_target_": "trainer.datasets.mnist.mnist", "path": "~/mnist.npz"}
    assert network_namespace.needs_network({"dataset": local, "callbacks": None}) is None
    datasets = {
        "dataset.files.1 (http://b)": {"files": ["/a", "http://b"]},
        "dataset._target_ (a.b)": {"_target_": "a.b"},
        "dataset.path is not set": {"path": None},
    }
    for key, dataset in datasets.items():
        assert network_namespace.needs_network({"dataset": dataset}).startswith(key)


def test_online_writer_names_the_variable(monkeypatch):
    targets = ("trainer.summaries.writers.mlflow.MLflow", "trainer.summaries.writers.wandb.WandB")
    writers = {target: {"_target_": target} for target in targets}
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////home/me/mlflow.db")
    assert environment.online_writer(writers) is None
    for variable, value in (("WANDB_MODE", "online"), ("MLFLOW_TRACKING_URI", "http://host:5000")):
        monkeypatch.setenv(variable, value)
        assert environment.online_writer(writers) == f"{variable} ({value}) may be on the network"
        monkeypatch.delenv(variable)
