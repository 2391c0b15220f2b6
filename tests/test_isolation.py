"""A network of its own: whoever is within is reached from within, and from nowhere else. Real processes."""

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from tests.processes import ROOT, wait_gone
from trainer import cli, cluster, config, isolation
from trainer.isolation import IsolationError, Namespace

TIMEOUT_SECS = 60
USER = 54321  # nobody's; not 65534, which a namespace shows for whom it does not know

SERVER = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    while True:
        server.accept()[0].close()
"""

TF_SERVER = """
import sys
import tensorflow as tf
server = tf.distribute.Server({"worker": [f"127.0.0.1:{sys.argv[1]}"]}, job_name="worker", task_index=0)
print("ready", flush=True)
server.join()
"""

CLIENT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=10); print('reached')"


@pytest.fixture(scope="module")
def namespace():
    try:
        made = Namespace.create()
    except IsolationError as error:
        pytest.skip(str(error))
    with made:
        yield made


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS, check=False, **options)


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


def is_reached(port):
    """Whether a port is open here: at 127.0.0.2, so that it is open at more than the address that a server was told."""
    try:
        socket.create_connection(("127.0.0.2", int(port)), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("server", [SERVER, TF_SERVER], ids=["plain", "tensorflow"])
def test_a_server_within_is_reached_from_within_alone(namespace, server):
    inner, outer = free_ports()
    with (
        started(namespace.command([sys.executable, "-c", server, inner])) as within,
        started([sys.executable, "-c", server, outer]) as control,
    ):
        assert [line_of(within), line_of(control)] == ["ready", "ready"]
        assert run(namespace.command([sys.executable, "-c", CLIENT, inner])).stdout == "reached\n"
        assert not is_reached(inner)
        assert is_reached(outer)
        assert "ConnectionRefusedError" in run(namespace.command([sys.executable, "-c", CLIENT, outer])).stderr


def test_a_file_written_within_is_the_users(namespace, tmp_path):
    path = tmp_path / "file"
    assert run(namespace.command(["touch", str(path)])).returncode == 0
    assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), os.getegid())


def test_the_process_id_is_the_commands_own(namespace):
    with started(namespace.command(["sh", "-c", "echo $$; exec sleep 600"])) as process:
        assert line_of(process) == str(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECS) == -signal.SIGTERM


def test_a_command_gets_all_that_it_was_given(namespace, tmp_path):
    code = "import os, sys; os.write(int(sys.argv[1]), f'{input()} {os.environ[\"WORD\"]} {os.getcwd()}'.encode()); sys.exit(7)"
    reading, writing = os.pipe()
    with open(reading) as received:
        command = namespace.command([sys.executable, "-c", code, str(writing)])
        environment = {**os.environ, "WORD": "word"}
        done = run(command, pass_fds=[writing], env=environment, cwd=tmp_path, input="line\n", start_new_session=True)
        os.close(writing)
        assert received.read() == f"line word {tmp_path}"
    assert (done.returncode, done.stderr) == (7, "")


def test_nothing_is_left_when_the_parent_is_killed(namespace):
    parent = (
        "import subprocess\n"
        "from trainer.isolation import Namespace\n"
        "namespace = Namespace.create()\n"
        "command = namespace.command(['sh', '-c', 'echo $$ $(readlink /proc/self/ns/net); exec cat'])\n"
        "subprocess.Popen(command, stdin=subprocess.PIPE).wait()"
    )
    with started([sys.executable, "-c", parent], cwd=ROOT) as process:
        child, link = line_of(process).split()
        assert link != os.readlink("/proc/self/ns/net")
        assert members(link) == [int(child)]
        process.kill()
        wait_gone(int(child))
        assert members(link) == []


def members(link):
    """Gives the processes in a network namespace."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has just ended, or is another user's
            if os.readlink(f"/proc/{name}/ns/net") == link:
                found.append(int(name))
    return found


def test_a_command_never_runs_outside(tmp_path):
    try:
        namespace = Namespace.create()
    except IsolationError as error:
        pytest.skip(str(error))
    command = namespace.command(["touch", str(tmp_path / "file")])
    namespace.close()
    done = run(command)
    assert done.returncode == 1
    assert "No such file or directory: '/proc/" in done.stderr
    assert not (tmp_path / "file").exists()
    with pytest.raises(ValueError, match="closed"):
        namespace.command(["true"])


AS_USER = """
import json, os, socket, subprocess, sys
sys.path.insert(0, os.getcwd())
from isolation import IsolationError, Namespace

try:
    namespace = Namespace.create()
except IsolationError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit()

def within(*command):
    return subprocess.run(namespace.command(command), capture_output=True, text=True, timeout=60).stdout.strip()

server, client, port = sys.argv[1:]
with subprocess.Popen(namespace.command([sys.executable, "-c", server, port]), stdout=subprocess.PIPE, text=True) as process:
    ready = process.stdout.readline().strip()
    reached = within(sys.executable, "-c", client, port)
    try:
        socket.create_connection(("127.0.0.1", int(port)), timeout=10)
        outside = "reached"
    except ConnectionRefusedError:
        outside = "refused"
    process.terminate()
within("touch", "file")
print(json.dumps({
    "ready": ready, "reached": reached, "outside": outside, "code": process.returncode,
    "new user namespace": within("readlink", "/proc/self/ns/user") != os.readlink("/proc/self/ns/user"),
    "user": within("id", "-u"), "group": within("id", "-g"), "capabilities": within("grep", "CapEff", "/proc/self/status").split()[-1],
    "owner": [os.stat("file").st_uid, os.stat("file").st_gid],
}))
"""


def test_a_user_without_privileges_gets_one_too():
    if os.geteuid() != 0:
        pytest.skip("not root: the other tests are this one")
    user = {"user": USER, "group": USER, "extra_groups": []}
    # Not below a directory of root's, as pytest's own are; nor may the checkout be.
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(isolation.__file__, directory)
        python = next(filter(lambda path: runs_for(path, user), (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")), None)
        if python is None:
            pytest.skip("no Python 3.11 that another user may run")
        os.chown(directory, USER, USER)
        done = run([python, "-c", AS_USER, SERVER, CLIENT, free_ports()[0]], cwd=directory, **user)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "refused" in found:
        pytest.skip(found["refused"])
    assert found == {
        "ready": "ready", "reached": "reached", "outside": "refused", "code": -signal.SIGTERM, "new user namespace": True,
        "user": str(USER), "group": str(USER), "capabilities": "0" * 16, "owner": [USER, USER],
    }  # fmt: skip


def runs_for(python, user):
    try:
        return run([python, "-c", "import ctypes, sys; sys.exit(sys.version_info < (3, 11))"], **user).returncode == 0
    except OSError:
        return False


def refusing(number, flags):
    """A C library whose `unshare` fails."""

    def unshare(given):
        flags.append(given)
        ctypes.set_errno(number)
        return -1

    return SimpleNamespace(unshare=unshare)


NET, USER_AND_NET = 0x40000000, 0x50000000


@pytest.mark.parametrize(
    ("number", "uid", "attempts", "reason"),
    [
        (errno.EPERM, 1000, [NET, USER_AND_NET], "Operation not permitted (this system or container forbids user namespaces)"),
        (errno.EPERM, 0, [NET], "Operation not permitted (root needs CAP_SYS_ADMIN)"),
        (errno.ENOSPC, 0, [NET], "No space left on device (the limit user.max_user_namespaces or user.max_net_namespaces is reached)"),
        (errno.EINVAL, 0, [NET], "Invalid argument (the kernel lacks them)"),
        (errno.ENOMEM, 0, [NET], "Cannot allocate memory"),
    ],
)
def test_a_refusal_has_a_reason(monkeypatch, number, uid, attempts, reason):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    flags = []
    with pytest.raises(IsolationError) as caught:
        isolation._make(refusing(number, flags))
    assert str(caught.value) == f"a network namespace is refused: {reason}"
    assert flags == attempts


def test_a_system_without_namespaces_says_so():
    with pytest.raises(IsolationError, match=rf"^this system \({sys.platform}\) has no network namespaces$"):
        isolation._make(SimpleNamespace())


def test_a_real_refusal_reaches_the_caller():
    code = (
        "import ctypes, os\n"
        "from trainer.isolation import IsolationError, Namespace\n"
        "uid = os.geteuid()\n"
        "assert ctypes.CDLL(None).unshare(0x10000000) == 0, 'no user namespace'\n"
        "open('/proc/self/uid_map', 'w').write(f'0 {uid} 1')\n"
        "open('/proc/sys/user/max_net_namespaces', 'w').write('0')\n"  # of the new user namespace, and of nothing else
        "try:\n"
        "    Namespace.create()\n"
        "except IsolationError as error:\n"
        "    print(error)\n"
    )
    done = run([sys.executable, "-c", code], cwd=ROOT)
    if "no user namespace" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.stdout == (
        "a network namespace is refused: No space left on device "
        "(the limit user.max_user_namespaces or user.max_net_namespaces is reached)\n"
    ), done.stderr


def test_an_experiment_of_the_projects_own_needs_no_network():
    assert isolation.needs_network(config.plain(cli.compose(["callbacks=early_stopping"]))) is None


@pytest.mark.parametrize(
    ("experiment", "reason"),
    [
        ({"dataset": {"path": "gs://bucket/train"}}, "dataset.path (gs://bucket/train) may be on the network"),
        ({"dataset": {"files": ["/a", "http://host/b"]}}, "dataset.files.1 (http://host/b) may be on the network"),
        ({"runs_dir": "s3://bucket"}, "runs_dir (s3://bucket) may be on the network"),
        (
            {"callbacks": {"mine": {"_target_": "mine.Callback"}}},
            "callbacks.mine._target_ (mine.Callback) is code of your own, which may use the network",
        ),
        ({"model": {"_target_": "trainers.model"}}, "model._target_ (trainers.model) is code of your own, which may use the network"),
        ({"dataset": {"path": None}}, "dataset.path is not set, so the data may have to be downloaded"),
        ({"dataset": {"_target_": "trainer.datasets.mnist.mnist", "path": "~/mnist.npz"}, "callbacks": None, "seed": 1}, None),
    ],
)
def test_what_may_need_the_network(experiment, reason):
    assert isolation.needs_network(experiment) == reason


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("MLFLOW_TRACKING_URI", "http://host:5000", "MLFLOW_TRACKING_URI (http://host:5000) may be on the network"),
        ("MLFLOW_TRACKING_URI", "sqlite:////home/me/mlflow.db", None),
        ("WANDB_MODE", "online", "WANDB_MODE is online"),
        ("WANDB_MODE", "offline", None),
    ],
)
def test_a_tracker_that_is_online_needs_the_network(monkeypatch, variable, value, reason):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv(variable, value)
    assert cluster.online_tracker(["jsonl", "mlflow", "wandb"]) == reason
    assert cluster.online_tracker(["jsonl", "tensorboard"]) is None


def test_the_warning_is_one_line_with_ports_reason_and_fix():
    warning = isolation.open_ports_warning(["127.0.0.1:4001", "[::1]:4002"], "strategy.isolate is false")
    assert "\n" not in warning
    for part in ("run operations and read files", "ports 4001, 4002,", "because strategy.isolate is false;", "strategy.isolate=true"):
        assert part in warning
