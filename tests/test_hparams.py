"""The HParams tab, asked through TensorBoard's own backend: one session for each run, with its values and its last metrics."""

import json
import signal

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from tests.processes import OPTIONS, finish, run, signaller, start
from trainer.cli import compose
from trainer.errors import StorageError
from trainer.hparams import Session, hyperparameters
from trainer.writers.tensorboard import TensorBoard

EXPERIMENT = compose(["model.width=4", "optimizer.learning_rate=0.01"])


def sessions(runs_dir):
    """Gives the session group of each run as the tab lists it, by name."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(runs_dir)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(runs_dir))))
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=100)
    groups = {group.name: group for group in Handler(RequestContext(), context, "", request).run().session_groups}
    assert all(len(group.sessions) == 1 for group in groups.values())
    return groups


def values(group):
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}


def status(group):
    return api_pb2.Status.Name(group.sessions[0].status)


def metrics(group, split):
    return {value.name.tag: value.value for value in group.metric_values if value.name.group == split}


def begun(run_dir, experiment=EXPERIMENT):
    session = Session(run_dir, experiment, writes=True)
    session.begin()
    return session


def test_what_makes_the_experiment_is_a_hyperparameter():
    found = hyperparameters(compose(["model=mobilenet", "schedule=cosine", "callbacks=early_stopping", "strategy=multi_worker"]))
    choices = {"model": "mobilenet", "schedule": "cosine", "callbacks": "early_stopping", "strategy": "multi_worker"}
    choices |= {"dataset": "digits", "task": "classification", "optimizer": "adam"}
    options = {"seed": 0, "precision": "float32", "jit": False, "train.epochs": 30, "batch.global_size": 128, "model.alpha": 1.0}
    options |= {"optimizer.learning_rate": 0.001, "schedule.warmup_steps": 0, "callbacks.early_stopping.patience": 5, "strategy.workers": 2}
    assert choices.items() | options.items() <= found.items()


def test_what_concerns_the_command_or_is_not_set_is_none():
    found = hyperparameters(compose(["model.width=4"]))
    assert not {name.split(".")[0] for name in found} & {"name", "runs_dir", "mode", "resume", "checkpoint", "summary", "sweep", "search"}
    assert not [name for name in found if name.endswith("_target_")]
    assert "train.steps" not in found
    assert "train.clip_norm" not in found
    assert "fault" not in found


def test_a_value_that_is_a_list_is_shown_as_it_is_written():
    assert hyperparameters(compose(["dataset.mean=[0.5]"]))["dataset.mean"] == "[0.5]"


def test_the_tab_lists_each_run_with_typed_values_and_the_last_metrics(tmp_path):
    for name, rate in (("a", 0.1), ("b", 0.01)):
        session = begun(tmp_path / name, compose([f"optimizer.learning_rate={rate}", "jit=true", "precision=mixed_bfloat16"]))
        writer = TensorBoard(tmp_path / name, 0)
        writer.scalars("train", 1, {"loss": 4.0})
        writer.scalars("test", 1, {"loss": 2.0, "accuracy": 0.25})
        writer.scalars("test", 2, {"loss": rate, "accuracy": 0.125})
        writer.close()
        session.end(succeeded=True)
    found = sessions(tmp_path)
    assert sorted(found) == ["a", "b"]
    for name, rate in (("a", 0.1), ("b", 0.01)):
        assert values(found[name]) == hyperparameters(compose([f"optimizer.learning_rate={rate}", "jit=true", "precision=mixed_bfloat16"]))
        assert metrics(found[name], "eval") == pytest.approx({"loss": rate, "accuracy": 0.125})
        assert metrics(found[name], "train") == {"loss": 4.0}
        assert status(found[name]) == "STATUS_SUCCESS"


def test_what_became_of_a_run_is_not_known_until_its_end(tmp_path):
    session = begun(tmp_path / "run")
    assert status(sessions(tmp_path)["run"]) == "STATUS_UNKNOWN"
    session.end(succeeded=False)
    assert status(sessions(tmp_path)["run"]) == "STATUS_FAILURE"


def test_an_attempt_takes_the_place_of_those_before_it(tmp_path):
    begun(tmp_path / "run").end(succeeded=False)
    begun(tmp_path / "run")
    assert status(sessions(tmp_path)["run"]) == "STATUS_UNKNOWN"
    begun(tmp_path / "run", compose(["optimizer.learning_rate=0.5"])).end(succeeded=True)
    found = sessions(tmp_path)["run"]
    assert (status(found), values(found)["optimizer.learning_rate"]) == ("STATUS_SUCCESS", 0.5)
    assert len(list((tmp_path / "run" / "events").iterdir())) == 1


def test_a_session_that_a_kill_cut_off_does_not_hinder_the_next(tmp_path):
    begun(tmp_path / "run")
    (file,) = (tmp_path / "run" / "events").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert sessions(tmp_path) == {}
    begun(tmp_path / "run")
    assert values(sessions(tmp_path)["run"]) == hyperparameters(EXPERIMENT)


def test_an_open_tensorboard_learns_of_the_next_attempt_and_the_end(tmp_path):
    begun(tmp_path / "run")
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    session = begun(tmp_path / "run")
    multiplexer.Reload()
    session.end(succeeded=True)
    multiplexer.Reload()
    assert multiplexer.SummaryMetadata("run/events", "_hparams_/session_end_info").plugin_data.content


def test_nothing_is_written_by_others_than_the_chief_or_without_the_writer(tmp_path):
    for experiment, writes in ((EXPERIMENT, False), (compose(["summary.writers=[jsonl]"]), True)):
        session = Session(tmp_path, experiment, writes=writes)
        session.begin()
        session.end(succeeded=True)
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "events").write_text("in the way")
    with pytest.raises(StorageError, match=r"events\.out\.tfevents\.\d+\.hparams could not be written: File exists"):
        begun(tmp_path)


@pytest.mark.slow
def test_the_points_of_a_sweep_are_compared_also_when_one_was_killed(tmp_path):
    code, _, err = run(tmp_path, *OPTIONS, "optimizer.learning_rate=0.01")
    assert code == 0, err
    # The supervisor dies in the middle; the same command goes on.
    again = [*OPTIONS, "optimizer.learning_rate=0.1", signaller(tmp_path, [12], signal.SIGKILL, to="supervisor")]
    assert finish(start(tmp_path, *again))[0] == -signal.SIGKILL
    code, _, err = run(tmp_path, *again)
    assert code == 0, err
    found = sessions(tmp_path / "runs")
    assert sorted(found) == sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert sorted(values(group)["optimizer.learning_rate"] for group in found.values()) == [0.01, 0.1]
    for name, group in found.items():
        result = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        shown = metrics(group, "eval")
        assert {tag: shown[tag] for tag in result["metrics"]} == pytest.approx(result["metrics"])
        assert (status(group), values(group)["model"], values(group)["model.width"]) == ("STATUS_SUCCESS", "cnn", 4)
        assert len(list((tmp_path / "runs" / name / "events").glob("*.hparams"))) == 1
