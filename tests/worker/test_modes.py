"""How a command starts."""

import pytest

from tests.support.training import SMALL
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.strategies import devices
from trainer.worker import modes
from trainer.worker.training import TrainingRun


@pytest.mark.parametrize("mode", ["train", "export"])
def test_every_mode_limits_the_gpus_first(tmp_path, monkeypatch, mode):
    class LimitedError(Exception):
        pass

    def limit_gpus(count):
        assert count == 0
        raise LimitedError

    monkeypatch.setattr(devices, "limit_gpus", limit_gpus)
    experiment = compose([*SMALL, "devices.gpus=0"])
    experiment.mode = mode
    with pytest.raises(LimitedError):
        modes.execute(TrainingRun(experiment, tmp_path, Channel(lambda message: None)), 0.0)
