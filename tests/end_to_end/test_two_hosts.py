"""Two hosts of two processes: the bits of one device, whoever is killed or stopped.

Gradients are added up in shared memory within a host, and over TCP between them.
"""

import signal

import pytest

from tests.support.hosts import two_hosts
from tests.support.processes import OPTIONS, SIGNALER, assert_same_run, finish, finished

ADDRESSES = ("10.78.0.10", "10.78.0.11")
TRAINING = [
    *OPTIONS, "train.steps=12", "checkpoint.every_steps=2", "batch.shards=4",
    "model.synchronized=false",
]  # fmt: skip
TOGETHER = ["strategy=multi_worker", "runs_dir=runs"]


def signaler(name, step, number, index):
    """Return the option of a callback that sends a signal to a worker at an evaluation."""
    return (
        f"+callbacks.{name}={{_target_:signaler.Signaler,at:[{step}],"
        f"number:{int(number)},index:{index}}}"
    )


FAULTS = [
    signaler("killed", 4, signal.SIGKILL, 3),
    "+fault.stopped={action:freeze,process:worker-2,phase:step,at:7}",
    "watchdog.stall_secs=8",
]


@pytest.mark.parametrize(
    ("training", "faults"),
    [
        pytest.param(TRAINING, [], marks=pytest.mark.slow, id="undisturbed"),
        pytest.param(TRAINING, FAULTS, marks=pytest.mark.long, id="killed-and-stopped"),
    ],
)
def test_run_ends_with_the_bits_of_one_device(tmp_path, training, faults):
    (tmp_path / "signaler.py").write_text(SIGNALER)
    command = [*training, *TOGETHER, *faults]
    addresses = [f"{ADDRESSES[index // 2]}:{23456 + index}" for index in range(4)]
    with two_hosts() as hosts:
        processes = hosts.start_cluster(tmp_path, addresses, *command)
        outputs = []
        for code, out, err in map(finish, processes):
            assert code == 0, out + err
            outputs.append(out)
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert "Communication: shared memory, TCP between hosts" in outputs[0]
    assert ("worker-3 was killed by SIGKILL" in outputs[3]) == (FAULTS[0] in faults)
    assert ("worker-2 makes no progress" in outputs[2]) == (FAULTS[1] in faults)
    one = finished(*training)
    assert_same_run(run_dir, one)
