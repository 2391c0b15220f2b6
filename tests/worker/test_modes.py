"""How a command starts: initial weights, and the limit of GPUs."""

import pytest

from tests.support.command_line import run_here
from tests.support.training import SMALL, engine
from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.strategies import devices
from trainer.worker import modes
from trainer.worker.training import TrainingRun

INLINE = (*SMALL, "train.epochs=null", "launch=inline")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of one step."""
    run_dir = tmp_path_factory.mktemp("source") / "run"
    engine(run_dir, "train.steps=1").train(lambda: False)
    return run_dir


def assert_one_line(outcome, problem):
    assert outcome.code == 2, outcome.out + outcome.err
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert problem in line
    assert "crashed" not in outcome.err


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_init_from_a_damaged_checkpoint_is_one_line(work, source):
    (work / "damaged" / "checkpoints").mkdir(parents=True)
    for file in (source / "checkpoints").iterdir():
        (work / "damaged" / "checkpoints" / file.name).write_bytes(file.read_bytes())
    (data,) = (work / "damaged" / "checkpoints").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:-1])
    outcome = run_here(*INLINE, "init_from=damaged")
    assert_one_line(outcome, "init_from (damaged): there is no checkpoint that verifies")
    assert not (work / "runs").exists()


def test_weights_of_another_model_are_one_line(work, source):
    outcome = run_here(*INLINE, "model.width=8", f"init_from={source}")
    assert_one_line(outcome, "does not fit this model")


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
