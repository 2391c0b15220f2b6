"""The first lines of a run: what is trained, where, and for how long."""

import logging

from tests.support.training import SMALL
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel, Opening
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
