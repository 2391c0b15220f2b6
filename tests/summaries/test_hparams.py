"""The HParams tab through TensorBoard's backend: a session a run, with values and last metrics."""

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from trainer.cli.compose import compose
from trainer.summaries.run_introduction import hyperparameters
from trainer.summaries.writers.tensorboard import TensorBoard

EXPERIMENT = compose(["model.width=4", "optimizer.learning_rate=0.01"])


def sessions(runs_dir):
    """Return the session group of each run, by name, as the tab lists it."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(runs_dir)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(runs_dir))))
    unknown = [api_pb2.STATUS_UNKNOWN]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=unknown, slice_size=100)
    groups = {
        group.name: group
        for group in Handler(RequestContext(), context, "", request).run().session_groups
    }
    assert all(len(group.sessions) == 1 for group in groups.values())
    return groups


def values(group):
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}


def metrics(group):
    assert {value.name.group for value in group.metric_values} == {""}
    return {value.name.tag: value.value for value in group.metric_values}


def write(run_dir, experiment=EXPERIMENT):
    writer = TensorBoard(run_dir, 0)
    writer.hyperparameters(hyperparameters(experiment))
    return writer


def test_hyperparameters_are_the_choices_and_values_that_name_the_run():
    words = ["model=mobilenet", "schedule=cosine", "callbacks=early_stopping"]
    shown = hyperparameters(compose([*words, "strategy=multi_worker"]))
    expected = {
        "model": "mobilenet", "schedule": "cosine", "callbacks": "early_stopping",
        "strategy": "multi_worker", "dataset": "digits", "task": "classification",
        "seed": 0, "jit": False, "train.epochs": 30, "model.alpha": 1.0,
        "callbacks.early_stopping.patience": 5, "strategy.workers": 2,
    }  # fmt: skip
    assert expected.items() <= shown.items()
    of_command = {"name", "runs_dir", "mode", "resume", "checkpoint", "summary", "sweep", "search"}
    assert not of_command & {name.split(".")[0] for name in shown}
    assert not [name for name in shown if name.endswith("_target_")]
    assert not {"train.steps", "train.clip_norm", "fault"} & shown.keys()


def test_tab_lists_each_run_with_typed_values_and_the_last_metrics(tmp_path):
    words = ["jit=true", "precision=mixed_bfloat16"]
    for name, rate in (("a", 0.1), ("b", 0.01)):
        writer = write(tmp_path / name, compose([f"optimizer.learning_rate={rate}", *words]))
        writer.scalars("train", 1, {"loss": 4.0})
        writer.scalars("test", 1, {"loss": 2.0, "accuracy": 0.25})
        writer.scalars("test", 2, {"loss": rate, "accuracy": 0.125})
        writer.close()
    groups = sessions(tmp_path)
    assert sorted(groups) == ["a", "b"]
    for name, rate in (("a", 0.1), ("b", 0.01)):
        assert values(groups[name]) == hyperparameters(
            compose([f"optimizer.learning_rate={rate}", *words])
        )
        assert metrics(groups[name]) == pytest.approx(
            {"metrics/loss/train": 4.0, "metrics/loss/test": rate, "metrics/accuracy/test": 0.125}
        )


def test_attempt_replaces_earlier_attempts_also_an_incomplete_one(tmp_path):
    write(tmp_path / "run").close()
    write(tmp_path / "run").close()
    (file,) = (tmp_path / "run" / "events").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert sessions(tmp_path) == {}
    write(tmp_path / "run", compose(["optimizer.learning_rate=0.5"])).close()
    assert values(sessions(tmp_path)["run"])["optimizer.learning_rate"] == 0.5
