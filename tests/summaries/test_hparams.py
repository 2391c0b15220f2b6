"""The HParams tab through TensorBoard's backend: a session a run, with values and last metrics."""

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

from tests.support.processes import OPTIONS, finish, run, signaler, start
from trainer.cli.compose import compose
from trainer.errors import StorageError
from trainer.summaries.hparams import HParamsSession, hyperparameters
from trainer.summaries.writers.tensorboard import TensorBoard

EXPERIMENT = compose(["model.width=4", "optimizer.learning_rate=0.01"])


def sessions(runs_dir):
    """Return the session group of each run, by name, as the tab lists it."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(runs_dir)).Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(runs_dir))))
    statuses = [
        api_pb2.STATUS_UNKNOWN,
        api_pb2.STATUS_SUCCESS,
        api_pb2.STATUS_FAILURE,
        api_pb2.STATUS_RUNNING,
    ]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=100)
    groups = {
        group.name: group
        for group in Handler(RequestContext(), context, "", request).run().session_groups
    }
    assert all(len(group.sessions) == 1 for group in groups.values())
    return groups


def values(group):
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}


def status(group):
    return api_pb2.Status.Name(group.sessions[0].status)


def metrics(group, split):
    return {
        value.name.tag: value.value for value in group.metric_values if value.name.group == split
    }


def begin_session(run_dir, experiment=EXPERIMENT):
    session = HParamsSession(run_dir, experiment, writes=True)
    session.begin()
    return session


def test_hyperparameters_have_choices_and_values():
    values_by_key = hyperparameters(
        compose(
            [
                "model=mobilenet",
                "schedule=cosine",
                "callbacks=early_stopping",
                "strategy=multi_worker",
            ]
        )
    )
    choices = {
        "model": "mobilenet",
        "schedule": "cosine",
        "callbacks": "early_stopping",
        "strategy": "multi_worker",
    }
    choices |= {"dataset": "digits", "task": "classification", "optimizer": "adam"}
    options = {
        "seed": 0,
        "precision": "float32",
        "jit": False,
        "train.epochs": 30,
        "batch.global_size": 128,
        "model.alpha": 1.0,
    }
    options |= {
        "optimizer.learning_rate": 0.001,
        "schedule.warmup_steps": 0,
        "callbacks.early_stopping.patience": 5,
        "strategy.workers": 2,
    }
    assert choices.items() | options.items() <= values_by_key.items()


def test_hyperparameters_leave_out_keys_of_the_command_and_nulls():
    values_by_key = hyperparameters(compose(["model.width=4"]))
    assert not {name.split(".")[0] for name in values_by_key} & {
        "name",
        "runs_dir",
        "mode",
        "resume",
        "checkpoint",
        "summary",
        "sweep",
        "search",
    }
    assert not [name for name in values_by_key if name.endswith("_target_")]
    assert "train.steps" not in values_by_key
    assert "train.clip_norm" not in values_by_key
    assert "fault" not in values_by_key


def test_hyperparameters_show_lists_as_text():
    assert (
        hyperparameters(compose(["dataset.normalize.mean=[0.5]"]))["dataset.normalize.mean"]
        == "[0.5]"
    )


def test_tab_lists_each_run_with_typed_values_and_the_last_metrics(tmp_path):
    for name, rate in (("a", 0.1), ("b", 0.01)):
        session = begin_session(
            tmp_path / name,
            compose([f"optimizer.learning_rate={rate}", "jit=true", "precision=mixed_bfloat16"]),
        )
        writer = TensorBoard(tmp_path / name, 0)
        writer.scalars("train", 1, {"loss": 4.0})
        writer.scalars("test", 1, {"loss": 2.0, "accuracy": 0.25})
        writer.scalars("test", 2, {"loss": rate, "accuracy": 0.125})
        writer.close()
        session.end(succeeded=True)
    groups = sessions(tmp_path)
    assert sorted(groups) == ["a", "b"]
    for name, rate in (("a", 0.1), ("b", 0.01)):
        assert values(groups[name]) == hyperparameters(
            compose([f"optimizer.learning_rate={rate}", "jit=true", "precision=mixed_bfloat16"])
        )
        assert metrics(groups[name], "eval") == pytest.approx({"loss": rate, "accuracy": 0.125})
        assert metrics(groups[name], "train") == {"loss": 4.0}
        assert status(groups[name]) == "STATUS_SUCCESS"


def test_status_of_a_run_is_unknown_until_its_end(tmp_path):
    session = begin_session(tmp_path / "run")
    assert status(sessions(tmp_path)["run"]) == "STATUS_UNKNOWN"
    session.end(succeeded=False)
    assert status(sessions(tmp_path)["run"]) == "STATUS_FAILURE"


def test_attempt_replaces_earlier_attempts(tmp_path):
    begin_session(tmp_path / "run").end(succeeded=False)
    begin_session(tmp_path / "run")
    assert status(sessions(tmp_path)["run"]) == "STATUS_UNKNOWN"
    begin_session(tmp_path / "run", compose(["optimizer.learning_rate=0.5"])).end(succeeded=True)
    group = sessions(tmp_path)["run"]
    assert (status(group), values(group)["optimizer.learning_rate"]) == ("STATUS_SUCCESS", 0.5)
    assert len(list((tmp_path / "run" / "events").iterdir())) == 1


def test_attempt_replaces_an_incomplete_session(tmp_path):
    begin_session(tmp_path / "run")
    (file,) = (tmp_path / "run" / "events").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert sessions(tmp_path) == {}
    begin_session(tmp_path / "run")
    assert values(sessions(tmp_path)["run"]) == hyperparameters(EXPERIMENT)


def test_open_tensorboard_sees_the_next_attempt_and_its_end(tmp_path):
    begin_session(tmp_path / "run")
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    session = begin_session(tmp_path / "run")
    multiplexer.Reload()
    session.end(succeeded=True)
    multiplexer.Reload()
    assert multiplexer.SummaryMetadata(
        "run/events", "_hparams_/session_end_info"
    ).plugin_data.content


def test_session_writes_in_the_chief_with_the_writer_alone(tmp_path):
    for experiment, writes in ((EXPERIMENT, False), (compose(["writers=[jsonl]"]), True)):
        session = HParamsSession(tmp_path, experiment, writes=writes)
        session.begin()
        session.end(succeeded=True)
    assert list(tmp_path.iterdir()) == []


def test_session_reports_a_failed_write(tmp_path):
    (tmp_path / "events").write_text("in the way")
    with pytest.raises(
        StorageError, match=r"events\.out\.tfevents\.\d+\.hparams could not be written: File exists"
    ):
        begin_session(tmp_path)


@pytest.mark.slow
def test_tab_compares_runs_also_after_a_kill(tmp_path):
    code, _, err = run(tmp_path, *OPTIONS, "optimizer.learning_rate=0.01")
    assert code == 0, err
    # The supervisor dies in the middle; the same command goes on.
    killed = [
        *OPTIONS,
        "optimizer.learning_rate=0.1",
        signaler(tmp_path, [12], signal.SIGKILL, to="supervisor"),
    ]
    assert finish(start(tmp_path, *killed))[0] == -signal.SIGKILL
    code, _, err = run(tmp_path, *killed)
    assert code == 0, err
    groups = sessions(tmp_path / "runs")
    assert sorted(groups) == sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert sorted(values(group)["optimizer.learning_rate"] for group in groups.values()) == [
        0.01,
        0.1,
    ]
    for name, group in groups.items():
        result = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        shown = metrics(group, "eval")
        assert {tag: shown[tag] for tag in result["metrics"]} == pytest.approx(result["metrics"])
        assert (status(group), values(group)["model"], values(group)["model.width"]) == (
            "STATUS_SUCCESS",
            "cnn",
            4,
        )
        assert len(list((tmp_path / "runs" / name / "events").glob("*.hparams"))) == 1
