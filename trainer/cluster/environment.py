"""Environment variables of this process and of those that it starts; nothing else reads them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path

import trainer
from trainer.cluster.spec import Cluster

_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "1",
    # Trackers store on this machine and send no usage statistics.
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

_READ_AT_IMPORT = (
    "TF_", "XLA_", "CUDA_", "NVIDIA_", "NCCL_", "TPU_", "LD_", "PYTHON", "OMP_", "KMP_", "MKL_",
    "GOTO_", "OPENBLAS_", "ONEDNN_", "DNNL_", "GRPC_", "KERAS_", "ABSL_", "MALLOC_", "GLIBC_",
    "NPY_", "HDF5_", "PROTOCOL_BUFFERS_", "LANG", "LC_", "HOME",
)  # fmt: skip
"""Prefixes of the variables that the interpreter, TensorFlow, and what it imports read early."""

_READ_LATER = frozenset(
    {"TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "CUDA_VISIBLE_DEVICES"}
)
"""Those of them that are read when TensorFlow creates its devices."""

_OFFLINE = ("", "offline", "disabled", "dryrun")
_LOCAL = ("sqlite:", "file:", "/", ".")
_FOR_TRAINING = ("TF_", "XLA_", "NCCL_", "WANDB_", "MLFLOW_", "STEADFAST_")
"""Prefixes of the variables of a command that its processes on other machines get too."""

_FORK_SERVER = "STEADFAST_FORK_SERVER"
_CALLER = "STEADFAST_CALLER"


def current() -> Mapping[str, str]:
    """Return the environment variables of this process."""
    return os.environ


def tpu_configured() -> str | None:
    """Return the TPU that the environment declares, `local` for one of this machine, or None."""
    # TensorFlow's order.
    for name in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"):
        if value := os.environ.get(name):
            return value
    return "local" if glob("/dev/accel[0-9]*") or glob("/dev/vfio/[0-9]*") else None


def ray_address() -> str | None:
    """Return the Ray cluster that the environment names, or None."""
    return os.environ.get("RAY_ADDRESS") or None


def ray_variables() -> dict[str, str]:
    """Return the variables that a process on another node of a Ray cluster needs of this one."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_FOR_TRAINING) and name != "TF_CONFIG"
    }
    return {**variables, "PYTHONPATH": worker_environment()["PYTHONPATH"]}


def online_writer(writers: object) -> str | None:
    """Return why one of the configured writers may use the network, or None.

    The class of a writer declares it by its constant `network`, which is read from its source.
    """
    from trainer.config.options import signatures  # only now: a command starts its server first

    for name, node in writers.items() if isinstance(writers, Mapping) else ():
        # What a class adds to one that needs no network may need it: nothing is inherited.
        variable = signatures.constant(node["_target_"], "network", ..., inherited=False)
        if variable is ...:
            return f"writers.{name} ({node['_target_']}) does not declare that it needs no network"
        value = os.environ.get(str(variable), "")
        if variable is not None and not value.startswith(_LOCAL) and value not in _OFFLINE:
            return f"{variable} ({value}) may be on the network"
    return None


def worker_environment(scratch: str | None = None) -> dict[str, str]:
    """Return the environment of a process of a run."""
    environment = dict(os.environ) if scratch is None else {**os.environ, "TMPDIR": scratch}
    # With a stale TF_CONFIG of the shell, a strategy of one process would wait for a cluster.
    environment.pop("TF_CONFIG", None)
    environment.pop(_FORK_SERVER, None)
    # The log is read during the run and after a kill: it must not stay in a buffer.
    environment["PYTHONUNBUFFERED"] = "1"
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    # So that a worker imports the same package.
    root = os.path.dirname(os.path.dirname(os.path.abspath(trainer.__file__)))
    # Once, however many processes have started each other.
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *paths]))
    return environment


def point_environment(threads: int | None, gpus: Sequence[str] | None) -> dict[str, str]:
    """Return the environment of a process that runs a point of a sweep, TF_CONFIG included.

    Args:
        threads: number of threads of a TensorFlow operation, unless the user has set it; None:
            TensorFlow's default.
    """
    environment = worker_environment()
    if declared := os.environ.get("TF_CONFIG"):
        environment["TF_CONFIG"] = declared
    if threads is not None:
        environment.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment


def default_threads() -> int:
    """Return the number of threads into which TensorFlow divides an operation by default."""
    if (configured := os.environ.get("TF_NUM_INTRAOP_THREADS", "")).isdigit() and int(configured):
        return int(configured)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(affinity) or os.cpu_count() or 1


def import_digest(environment: Mapping[str, str]) -> str:
    """Return a hash of what a process has from its start, and of what libraries read when imported.

    That is the interpreter, the namespaces of Linux, and some variables. Of two processes of one
    command with the same hash one can be forked instead of the other.
    """
    early = {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER
    }
    namespaces = [os.readlink(path) for path in sorted(glob("/proc/self/ns/*"))]
    content = json.dumps([sys.executable, sys.version, namespaces, early], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def fork_server() -> str | None:
    """Return the folder of the fork server that the starter of this process names, or None."""
    return os.environ.get(_FORK_SERVER)


def name_fork_server(environment: dict[str, str], directory: str) -> None:
    """Name the fork server that the process of an environment is to use."""
    environment[_FORK_SERVER] = directory


def keep_from_trackers(environment: dict[str, str], folder: Path) -> None:
    """Have trackers that the code of a process uses store nothing, or only in a folder."""
    database = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
    environment |= {"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": database}


def visible_gpus() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    devices = sorted(
        (path.removeprefix("/dev/nvidia") for path in glob("/dev/nvidia[0-9]*")), key=int
    )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not devices or visible is None:
        return devices
    names = (name.strip() for name in visible.split(","))
    # CUDA ignores an invalid device and all that follow it.
    return list(itertools.takewhile(lambda name: name and name != "-1", names))


def may_have_gpus() -> bool:
    """Return whether this machine may have a GPU, of NVIDIA, of AMD, or through Windows."""
    return bool(visible_gpus() or glob("/dev/kfd") or glob("/dev/dxg"))


def of_command(folders: Sequence[str], caller: int) -> dict[str, str]:
    """Return the environment of a command that this process calls.

    Args:
        caller: a descriptor of it, whose other end is closed when this process ends.
    """
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *folders]
    python_path = os.pathsep.join(dict.fromkeys(paths))
    return {**os.environ, "PYTHONPATH": python_path, _CALLER: str(caller)}


def take_caller() -> int | None:
    """Return the descriptor that `of_command` names to this process, and hide it from others."""
    value = os.environ.pop(_CALLER, None)
    return None if value is None else int(value)


def replace(environment: Mapping[str, str]) -> None:
    """Set all environment variables of this process, and no others."""
    os.environ.clear()
    os.environ.update(environment)


def add_working_directory() -> None:
    """Append the working directory to the import path, for a `_target_` in a user's own package.

    Every process appends, so that all import the same one of two modules with one name.
    """
    if (directory := os.getcwd()) not in sys.path:
        sys.path.append(directory)


def share_gpus() -> None:
    """Have TensorFlow take the memory of GPUs in this process only as it needs it.

    It reads this when it creates its devices, at the first operation.
    """
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def prepare_environment() -> None:
    """Set what libraries read when they are imported.

    That is the Keras line (docs/adr/0001-tf-keras.md), quiet logs, and offline trackers.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


def set_tf_config(cluster: Cluster) -> None:
    """Set what TensorFlow reads when it joins a cluster."""
    os.environ.pop("TF_CONFIG", None)
    if cluster.jobs:
        os.environ["TF_CONFIG"] = cluster.tf_config()
        # A refused connection fails immediately where TensorFlow expects that, and waits elsewhere.
        os.environ["GRPC_FAIL_FAST"] = "use_caller"
