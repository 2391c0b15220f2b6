"""What goes with an environment."""

import pytest

from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.strategies import compatibility, select

CATCH = ["task=impala", "env=catch", "model=mlp", "train.steps_per_epoch=10"]


def test_environment_takes_the_place_of_the_dataset_and_names_the_run():
    experiment = compose(CATCH)
    assert experiment.dataset is None
    assert experiment.choices["dataset"] is None
    assert experiment.buffer["max_staleness"] == 20
    assert run_name(experiment).startswith("mlp-catch-")
    assert compose([]).buffer is None


def test_number_of_actors_does_not_name_the_run():
    more = ["actors.count=5"]
    assert run_name(compose(CATCH)) == run_name(compose([*CATCH, *more]))


def test_strategy_that_hands_out_steps_is_refused():
    experiment = compose([*CATCH, "strategy=parameter_server"])
    strategy = select.select_strategy(experiment)
    with pytest.raises(ConfigError, match=r"env \(trainer.*Catch\) cannot be used with strategy=p"):
        compatibility.check(experiment, strategy, Cluster())
