"""The first lines of a run: what is trained, where, and for how long."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.training import SMALL
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Opening
from trainer.cluster.spec import Cluster, ProcessId
from trainer.strategies.parameter_server import ParameterServer
from trainer.strategies.strategy import Strategy
from trainer.worker import announcement
from trainer.worker.run import Run


def test_first_lines_name_model_data_devices_communication_and_batch(tmp_path, caplog):
    messages = []
    mirrored = ["strategy=mirrored", "strategy.virtual_devices=2"]
    with caplog.at_level(logging.INFO):
        announcement.announce(Run(compose([*SMALL, *mirrored]), tmp_path, Channel(messages.append)))
    assert [message.text for message in messages if isinstance(message, Opening)] == [
        f"cnn (1,766 parameters) on digits, 2 CPUs -> {tmp_path}",
        "Communication: hierarchical copy",
        "batch 16 = 2 replicas x 8; 8 steps",
    ]
    assert "Number of devices: 2" in caplog.messages


ENV = ["task=impala", "env=catch", "model=mlp", "train.steps_per_epoch=9"]


@pytest.mark.parametrize(
    ("overrides", "strategy", "jobs", "line", "logged"),
    [
        ([], ParameterServer(), {"chief": 1, "ps": 1, "worker": 2},
         "cnn on digits, 2 workers, 1 parameter server", 2),
        ([], Strategy(), {"worker": 3}, "cnn on digits, 3 processes x 2 GPUs", 6),
        (ENV, Strategy(), {}, "cnn on catch, 6 GPUs, 2 actors", 6),
    ],
)  # fmt: skip
def test_devices_are_told_as_they_are_divided(overrides, strategy, jobs, line, logged):
    messages, log = [], []
    addresses = {job: [f"{job}:{index}" for index in range(n)] for job, n in jobs.items()}
    cluster = Cluster(ProcessId("worker", 0), addresses)
    channel = Channel(messages.append)
    channel.log = log.append
    run = SimpleNamespace(
        experiment=compose(overrides),
        run_dir=Path("runs/x"),
        channel=channel,
        cluster=cluster,
        strategy=strategy,
        group=SimpleNamespace(count=jobs.get("worker", 1), local_devices=["/task:0/device:GPU:0"]),
    )
    announcement._announce(run, "cnn", 1 if strategy.asynchronous else 6)
    assert messages == [Opening(f"{line} -> runs/x")]
    assert log == [f"Number of devices: {logged}"]
