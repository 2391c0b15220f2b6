"""What goes with an environment, and what does not."""

import pytest

from trainer.cli.compose import compose
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.strategies import compatibility, select

CATCH = ["task=impala", "env=catch", "model=mlp", "train.steps_per_epoch=10"]


def problems(*overrides):
    with pytest.raises(ConfigError) as raised:
        compose([*CATCH, *overrides])
    return raised.value.problems


def test_environment_takes_the_place_of_the_dataset_and_names_the_run():
    experiment = compose(CATCH)
    assert experiment.dataset is None
    assert experiment.choices["dataset"] is None
    assert experiment.buffer["max_staleness"] == 20
    assert run_name(experiment).startswith("mlp-catch-")


def test_number_of_actors_does_not_name_the_run():
    more = ["actors.count=5", "actors.inference=learner"]
    assert run_name(compose(CATCH)) == run_name(compose([*CATCH, *more]))


def test_run_without_environment_has_no_buffer():
    assert compose([]).buffer is None


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("dataset=digits", "dataset has no use: env (catch) takes its place; remove it"),
        (
            "train.steps_per_epoch=null",
            "train.steps_per_epoch (null) must be set with env (catch), which has no pass over "
            "the data; add train.steps_per_epoch=100",
        ),
        (
            "mode=verify",
            "mode (verify) cannot be used with env (catch): what actors send is another in each "
            "run, and no split can be predicted; use one of train, plan, evaluate, export",
        ),
        (
            "batch.shards=2",
            "batch.shards (2) cannot be used with env (catch): no run repeats; "
            "add batch.shards=null",
        ),
        (
            "divergence.action=rollback",
            "divergence.action (rollback) cannot be used with env (catch): frames of actors are "
            "seen once; add divergence.action=skip",
        ),
        (
            "evaluate.sidecar=true",
            "evaluate.sidecar (true) cannot be used with env (catch): it evaluates a dataset; "
            "add evaluate.sidecar=false",
        ),
        (
            "launch=inline",
            "launch.inline (true) cannot be used with env (catch): actors are processes; "
            "add launch.inline=false",
        ),
        (
            "summary.images=5",
            "summary.images (5) cannot be used with env (catch): frames of actors are seen once; "
            "add summary.images=null",
        ),
        ("metrics=per_class", "metrics (per_class) cannot be used with env (catch): they are of "
         "labels; add metrics=[]"),
        ("env.rows=1", "env.rows (1) must be >= 2"),
        ("buffer.capacity=0", "buffer.capacity (0) must be >= 1"),
    ],
)  # fmt: skip
def test_options_unfit_for_an_environment_are_refused(override, problem):
    assert problem in problems(override)


@pytest.mark.parametrize("override", ["buffer=queue", "actors.count=3"])
def test_keys_of_actors_need_an_environment(override):
    with pytest.raises(ConfigError, match=r"needs env=<choice>; remove it"):
        compose([override])


def test_strategy_that_hands_out_steps_is_refused():
    experiment = compose([*CATCH, "strategy=parameter_server"])
    strategy = select.select_strategy(experiment)
    with pytest.raises(ConfigError, match=r"env \(trainer.*Catch\) cannot be used with strategy=p"):
        compatibility.check(experiment, strategy, None)
