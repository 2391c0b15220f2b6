"""Sweeps by Hydra's launchers: real runs with submitit, and refused settings."""

import json
import signal
import time

import pytest
from hydra.core.config_store import ConfigStore

from tests.support.command_line import run_here
from tests.support.marks import first_only
from tests.support.processes import OPTIONS, finish, run, start
from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.runs.status import State, run_status
from trainer.sweep.launchers.launcher_driver import check_launcher

WAITER = '''
import pathlib, threading

from trainer.cluster.signals import Signals

requested = threading.Event()
request = Signals.request


def request_and_notify(self, number):
    request(self, number)
    requested.set()


Signals.request = request_and_notify


class Waiter:
    """Creates a file at the first evaluation of the run, and waits for a stop request."""

    def __init__(self, *, name: str) -> None:
        self.file = pathlib.Path(f"reached-{name}")

    def on_evaluate(self, step, metrics):
        if not self.file.exists():
            self.file.touch()
            assert requested.wait(60), "no request came"
        return False
'''
SWEEP = (
    "-m",
    *OPTIONS,
    "+callbacks.waiter._target_=waiter.Waiter",
    "+callbacks.waiter.name=a,b",
    "sweep.name=mine",
    # Keys that the engine adds to a choice, of which Hydra knows nothing.
    "dataset.validation=0.2",
    "optimizer.lazy=false",
    "schedule.reference_batch=16",
)
SUBMITIT = ["hydra/launcher=submitit_local"]


@pytest.fixture
def project(tmp_path):
    """A user's project with a callback that waits."""
    (tmp_path / "waiter.py").write_text(WAITER)
    return tmp_path


@pytest.fixture
def submitit():
    """The overrides that choose a launcher, which is skipped where it is not installed."""
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="steadfast[submitit] is not installed"
    )
    return SUBMITIT


def wait_for(condition, message):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


def runs(project):
    return sorted(path for path in (project / "runs").iterdir() if path.name != "sweeps")


def problems_of(settings, *overrides, declared=None):
    with pytest.raises(ConfigError) as caught:
        check_launcher(settings, compose(list(overrides)), None, declared)
    return list(caught.value.problems)


def assert_continued(project, command, out):
    """Check that both points were stopped once, and finished by the same command."""
    assert "2 points: 2 done" in out
    assert len(runs(project)) == 2
    for path in runs(project):
        record = json.loads((path / "run.json").read_text())
        assert record["argv"][1:] == [*command]
        assert [item for item in record["overrides"] if item.startswith(("hydra", "sweep"))] == []
        assert json.loads((path / "result.json").read_text())["attempts"] == 2
    summary = (project / "runs" / "sweeps" / "mine" / "summary.json").read_bytes()
    # A further repetition starts nothing and changes nothing.
    code, out, err = run(project, *command)
    assert (code, err) == (0, "")
    assert "2 points, 2 of them done already" in out
    assert (project / "runs" / "sweeps" / "mine" / "summary.json").read_bytes() == summary
    assert {path.name for path in project.iterdir()} - {"__pycache__"} == {
        "waiter.py",
        "runs",
        "reached-a",
        "reached-b",
    }


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", first_only([True, False]), ids=["killed", "stopped"])
def test_points_save_when_their_sweep_ends_and_are_continued(project, submitit, is_killed):
    command = [*SWEEP, *submitit]
    process = start(project, *command)
    wait_for(
        lambda: all((project / f"reached-{name}").exists() for name in "ab"),
        "the points do not train",
    )
    if is_killed:
        process.kill()
        finish(process)
        wait_for(
            lambda: [run_status(path).state for path in runs(project)] == [State.STOPPED] * 2,
            "the points go on, or have not saved",
        )
    else:
        process.terminate()
        code, out, err = finish(process)
        assert code == 128 + signal.SIGTERM, err
        assert "SIGTERM: the running points save, then leave." in out
        assert "2 points: 2 stopped" in out
    code, out, err = run(project, *command)
    assert code == 0, err
    assert "the output of the jobs is in runs/sweeps/mine/submitit" in out
    assert len(list((project / "runs" / "sweeps" / "mine" / "submitit").glob("*_log.out"))) == 4
    assert_continued(project, command, out)


def test_missing_launcher_and_options_without_one_are_refused(monkeypatch):
    assert problems_of(["hydra.launcher.n_jobs=2"]) == [
        "hydra.launcher.n_jobs=2 is an option of a launcher, and none is chosen; "
        "add hydra/launcher=submitit_local, or use sweep.jobs"
    ]
    groups = ConfigStore.instance().repo["hydra"]
    monkeypatch.setitem(groups, "launcher", {"basic.yaml": groups["launcher"]["basic.yaml"]})
    assert problems_of(SUBMITIT) == [
        "hydra/launcher (submitit_local) is not installed; "
        "install it with: pip install 'steadfast[submitit]'"
    ]


def test_unsupported_settings_are_reported_together(submitit):
    declared = Cluster(source="TF_CONFIG")
    assert problems_of(
        submitit, "search=random", "sweep.jobs=2", "sweep.on_error=stop", declared=declared
    ) == [
        "search (random) must be grid with hydra/launcher=submitit_local; leave the launcher out",
        "sweep.jobs (2) has no effect with hydra/launcher=submitit_local; leave it out",
        "sweep.on_error (stop) must be continue with hydra/launcher=submitit_local; "
        "the same command retries what failed",
        "TF_CONFIG declares a cluster for one point at a time; "
        "leave hydra/launcher=submitit_local out",
    ]
    assert problems_of(["hydra/launcher=submitit_slurm"], "resume=never") == [
        "resume (never) would start a point afresh each time its job is started again; leave it out"
    ]


def test_unknown_launcher_option_is_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, submitit
):
    monkeypatch.chdir(tmp_path)
    options = ["hydra.launcher.gpu_per_node=2", "hydra.verbose=true", "seed=1,2"]
    outcome = run_here("-m", *submitit, *options)
    key = "hydra.launcher.gpu_per_node"
    message = f"error: unknown key '{key}'; did you mean '{key.replace('gpu', 'gpus')}'?"
    assert (outcome.code, outcome.out, outcome.err.strip()) == (2, "", message)
    assert list(tmp_path.iterdir()) == []
