"""Sweeps by Hydra's launchers: real runs with joblib and submitit, and refused settings."""

import json
import pickle
import signal
import time
from contextlib import closing

import pytest
from hydra.core.config_store import ConfigStore

from tests.support.processes import OPTIONS, finish, run, start
from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.runs.status import State, run_status
from trainer.sweep import hydra_launchers
from trainer.sweep.launcher_job import LauncherJob
from trainer.sweep.sweep_lock import SweepLock

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
)
JOBLIB = ["hydra/launcher=joblib"]
SUBMITIT = ["hydra/launcher=submitit_local"]


@pytest.fixture
def project(tmp_path):
    """A user's project with a callback that waits."""
    (tmp_path / "waiter.py").write_text(WAITER)
    return tmp_path


@pytest.fixture
def lock(tmp_path):
    """The lock of a sweep's folder."""
    return SweepLock(tmp_path / "sweep" / ".lock")


@pytest.fixture
def handlers():
    """Restores the signal handlers that a job replaces."""
    original = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in original.items():
        signal.signal(number, handler)


def require_joblib():
    pytest.importorskip(
        "hydra_plugins.hydra_joblib_launcher", reason="steadfast[joblib] is not installed"
    )


def wait_for(condition, message):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


def runs(project):
    return sorted(path for path in (project / "runs").iterdir() if path.name != "sweeps")


def problems_of(settings, *overrides, declared=None):
    with pytest.raises(ConfigError) as caught:
        hydra_launchers.check_launcher(settings, compose(list(overrides)), None, declared)
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
def test_joblib_points_end_with_a_killed_sweep_and_are_continued(project):
    require_joblib()
    command = [*SWEEP, *JOBLIB, "hydra.launcher.n_jobs=2"]
    process = start(project, *command)
    wait_for(
        lambda: all((project / f"reached-{name}").exists() for name in "ab"),
        "the points do not train",
    )
    process.kill()
    finish(process)
    wait_for(
        lambda: [run_status(path).state for path in runs(project)] == [State.STOPPED] * 2,
        "the points go on, or have not saved",
    )
    code, out, err = run(project, *command)
    assert code == 0, err
    assert_continued(project, command, out)


@pytest.mark.slow
def test_submitit_points_save_when_the_sweep_is_stopped_and_are_continued(project):
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="steadfast[submitit] is not installed"
    )
    command = [*SWEEP, *SUBMITIT]
    process = start(project, *command)
    wait_for(
        lambda: all((project / f"reached-{name}").exists() for name in "ab"),
        "the points do not train",
    )
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


def test_split_overrides_separates_those_of_the_launcher():
    overrides = [
        "model=cnn",
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "hydra.verbose=true",
        "seed=1,2",
    ]
    expected = (
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        ["model=cnn", "hydra.verbose=true", "seed=1,2"],
    )
    assert hydra_launchers.split_overrides(overrides) == expected


def test_unknown_and_missing_launchers_are_refused(monkeypatch):
    choices = "joblib, submitit_local, submitit_slurm"
    assert problems_of(["hydra/launcher=jobli"]) == [
        f"hydra/launcher (jobli): no such launcher; choose one of: {choices}; "
        "did you mean 'joblib'?"
    ]
    groups = ConfigStore.instance().repo["hydra"]
    monkeypatch.setitem(groups, "launcher", {"basic.yaml": groups["launcher"]["basic.yaml"]})
    assert problems_of(JOBLIB) == [
        "hydra/launcher (joblib) is not installed; install it with: pip install 'steadfast[joblib]'"
    ]
    assert problems_of(SUBMITIT) == [
        "hydra/launcher (submitit_local) is not installed; "
        "install it with: pip install 'steadfast[submitit]'"
    ]


def test_basic_launcher_and_options_without_a_launcher_are_refused():
    assert problems_of(["hydra.launcher.n_jobs=2"]) == [
        "hydra.launcher.n_jobs=2 is an option of a launcher, and none is chosen; "
        "add hydra/launcher=joblib, or use sweep.jobs"
    ]
    assert problems_of(["hydra/launcher=basic"]) == [
        "hydra/launcher (basic) cannot run points in parallel, or resume them; leave it out"
    ]


def test_unsupported_settings_are_reported_together():
    require_joblib()
    declared = Cluster(source="TF_CONFIG")
    assert problems_of(
        JOBLIB, "search=random", "sweep.jobs=2", "sweep.on_error=retry", declared=declared
    ) == [
        "search.method (random) must be grid with hydra/launcher=joblib; leave the launcher out",
        "sweep.jobs (2) has no effect with hydra/launcher=joblib; use hydra.launcher.n_jobs=2",
        "sweep.on_error (retry) must be continue with hydra/launcher=joblib; "
        "the same command retries what failed",
        "TF_CONFIG declares a cluster for one point at a time; leave hydra/launcher=joblib out",
    ]


def test_points_that_start_afresh_cannot_be_requeued():
    pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher", reason="steadfast[submitit] is not installed"
    )
    problem = "resume (never) would start a point afresh each time its job is started again"
    assert problems_of(["hydra/launcher=submitit_slurm"], "resume=never") == [
        f"{problem}; leave it out"
    ]


def test_unknown_launcher_option_is_one_line_and_nothing_is_written(tmp_path):
    require_joblib()
    code, out, err = run(tmp_path, "-m", *JOBLIB, "hydra.launcher.njobs=2", "seed=1,2")
    assert (code, out, err) == (
        2,
        "",
        "error: unknown key 'hydra.launcher.njobs'; did you mean 'n_jobs'?\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_running_sweep_is_not_started_again(tmp_path):
    require_joblib()
    (tmp_path / "runs" / "sweeps" / "mine").mkdir(parents=True)
    with closing(SweepLock(tmp_path / "runs" / "sweeps" / "mine" / ".lock").acquire()):
        code, _, err = run(tmp_path, "-m", *JOBLIB, "sweep.name=mine", "seed=1,2")
    assert code == 2
    assert err == ("error: runs/sweeps/mine: the same sweep is running; wait for it, or stop it\n")


def test_job_does_not_start_after_its_sweep_has_ended(lock, handlers):
    job = pickle.loads(pickle.dumps(LauncherJob(["train.py"], None, ["seed"], lock, None)))
    assert job(None) == 128 + signal.SIGTERM
