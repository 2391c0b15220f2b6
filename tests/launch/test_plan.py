"""mode=plan: what a run would be, without training."""

import pytest

from tests.support.command_line import run_here
from trainer.strategies.central_storage import CentralStorage
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.parameter_server import ParameterServer
from trainer.strategies.strategy import Strategy


@pytest.mark.slow
def test_run_on_eight_devices_that_are_not_here(tmp_path, monkeypatch):
    """A softmax regression of 64 x 10 weights and 10 biases, in float32, with Adam's two slots."""
    monkeypatch.chdir(tmp_path)
    outcome = run_here(
        "mode=plan", "strategy=mirrored", "plan.replicas=8", "model=softmax", "train.ema_decay=0.9"
    )
    assert outcome.code == 0, outcome.err
    for figure in (
        "128 = 8 replicas x 16",
        "650 trainable parameters",
        "weights 2.6 kB, optimizer 5.2 kB, averages 2.6 kB, gradients 2.6 kB",
        "about 20.8 kB a process",
        "4.5 kB a step and replica",
    ):
        assert figure in outcome.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("strategy", "in_tree", "size"),
    [
        (Strategy(), False, 1500.0),  # 2 * 3 / 4 of 1000
        (MultiWorker(), False, 1500.0),
        (MultiWorker(compress="float16"), False, 750.0),
        (MultiWorker(), True, 1500.0),
        (MultiWorker(communication="ring"), True, 3000.0),
        (CentralStorage(), False, 2200.0),
        (ParameterServer(), False, 2200.0),
        (Mirrored(cross_device_ops="reduction_to_one_device"), False, 1000.0),
    ],
)
def test_traffic_of_four_replicas(strategy, in_tree, size):
    assert strategy.traffic(1000.0, 1200.0, 4, in_tree=in_tree)[0] == size
