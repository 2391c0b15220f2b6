"""Sweeps by Hydra's launchers: joblib and submitit for real, and what is refused before anything is written."""

import json
import os
import pickle
import signal
import time

import pytest
from hydra.core.config_store import ConfigStore

from tests.processes import OPTIONS, finish, run, start
from trainer.cli import compose
from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.outcome import State, outcome_of
from trainer.sweep import launchers
from trainer.sweep.job import Job, Leash

WAITER = '''
import pathlib, threading

from trainer.signals import Signals

requested, request = threading.Event(), Signals.request


def noticed(self, number):
    request(self, number)
    requested.set()


Signals.request = noticed


class Waiter:
    """At its first evaluation, once, says that the run is on its way, and waits until that is asked to stop."""

    def __init__(self, *, name: str) -> None:
        self.mark = pathlib.Path(f"reached-{name}")

    def on_evaluate(self, step, metrics):
        if not self.mark.exists():
            self.mark.touch()
            assert requested.wait(60), "no request came"
        return False
'''
SWEEP = ("-m", *OPTIONS, "+callbacks.waiter._target_=waiter.Waiter", "+callbacks.waiter.name=a,b", "sweep.name=mine")
JOBLIB = ["hydra/launcher=joblib"]
SUBMITIT = ["hydra/launcher=submitit_local"]


@pytest.fixture
def project(tmp_path):
    """A user's project with a callback that waits."""
    (tmp_path / "waiter.py").write_text(WAITER)
    return tmp_path


@pytest.fixture
def leash(tmp_path):
    """What binds jobs to a sweep."""
    return Leash(tmp_path / "sweep" / ".lock")


@pytest.fixture
def handlers():
    """Puts the handlers of signals back that a job sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_for(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def runs(project):
    return sorted(path for path in (project / "runs").iterdir() if path.name != "sweeps")


def refused(settings, *overrides, declared=None):
    with pytest.raises(ConfigError) as caught:
        launchers.check(settings, compose(list(overrides)), None, declared)
    return list(caught.value.problems)


def assert_continued(project, command, out):
    """Checks that both points were stopped once, and finished by the same command."""
    assert "2 points: 2 done" in out
    assert len(runs(project)) == 2
    for path in runs(project):
        record = json.loads((path / "run.json").read_text())
        assert record["argv"][1:] == [*command]
        assert [item for item in record["overrides"] if item.startswith(("hydra", "sweep"))] == []
        assert json.loads((path / "result.json").read_text())["attempts"] == 2
    summary = (project / "runs" / "sweeps" / "mine" / "summary.json").read_bytes()
    # Once more: there is nothing to do, and nothing changes.
    code, out, err = run(project, *command)
    assert (code, err) == (0, "")
    assert "2 points, 2 of them done already" in out
    assert (project / "runs" / "sweeps" / "mine" / "summary.json").read_bytes() == summary
    assert {path.name for path in project.iterdir()} - {"__pycache__"} == {"waiter.py", "runs", "reached-a", "reached-b"}


@pytest.mark.slow
def test_joblib_runs_points_that_end_with_a_killed_sweep_and_are_continued(project):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="steadfast[joblib] is not installed")
    command = [*SWEEP, *JOBLIB, "hydra.launcher.n_jobs=2"]
    process = start(project, *command)
    wait_for(lambda: all((project / f"reached-{name}").exists() for name in "ab"), "the points do not train")
    process.kill()
    finish(process)
    wait_for(lambda: [outcome_of(path).state for path in runs(project)] == [State.STOPPED] * 2, "the points go on, or have not saved")
    code, out, err = run(project, *command)
    assert code == 0, err
    assert_continued(project, command, out)


@pytest.mark.slow
def test_submitit_runs_points_that_save_when_the_sweep_is_stopped_and_are_continued(project):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="steadfast[submitit] is not installed")
    command = [*SWEEP, *SUBMITIT]
    process = start(project, *command)
    wait_for(lambda: all((project / f"reached-{name}").exists() for name in "ab"), "the points do not train")
    process.terminate()
    code, out, err = finish(process)
    assert code == 128 + signal.SIGTERM, err
    assert "SIGTERM: the running points save, then leave; once more leaves at once." in out
    assert "2 points: 2 stopped" in out
    code, out, err = run(project, *command)
    assert code == 0, err
    assert "what the jobs say is in runs/sweeps/mine/submitit" in out
    assert len(list((project / "runs" / "sweeps" / "mine" / "submitit").glob("*_log.out"))) == 4
    assert_continued(project, command, out)


def test_the_overrides_of_a_launcher_are_told_from_all_others():
    given = ["model=cnn", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.verbose=true", "seed=1,2"]
    expected = (["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], ["model=cnn", "hydra.verbose=true", "seed=1,2"])
    assert launchers.split(given) == expected


def test_a_launcher_that_is_unknown_or_not_installed_is_one_line(monkeypatch):
    known = "joblib, submitit_local, submitit_slurm"
    assert refused(["hydra/launcher=jobli"]) == [
        f"hydra/launcher (jobli): no such launcher; choose one of: {known}; did you mean 'joblib'?"
    ]
    hydras = ConfigStore.instance().repo["hydra"]
    monkeypatch.setitem(hydras, "launcher", {"basic.yaml": hydras["launcher"]["basic.yaml"]})
    assert refused(JOBLIB) == ["hydra/launcher (joblib) is not installed; install it with: pip install 'steadfast[joblib]'"]
    assert refused(SUBMITIT) == ["hydra/launcher (submitit_local) is not installed; install it with: pip install 'steadfast[submitit]'"]


def test_options_without_a_launcher_and_hydras_own_are_refused():
    line = "hydra.launcher.n_jobs=2 is an option of a launcher, and none is chosen; add hydra/launcher=joblib, or use sweep.jobs"
    assert refused(["hydra.launcher.n_jobs=2"]) == [line]
    assert refused(["hydra/launcher=basic"]) == ["hydra/launcher (basic) cannot run points at a time, or resume them; leave it out"]


def test_what_a_launcher_cannot_do_is_told_at_once():
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="steadfast[joblib] is not installed")
    declared = Cluster(source="TF_CONFIG")
    assert refused(JOBLIB, "search=random", "sweep.jobs=2", "sweep.on_error=retry", declared=declared) == [
        "search.method (random) learns from points one after the other; leave hydra/launcher=joblib out",
        "sweep.jobs (2) has no effect with hydra/launcher=joblib; use hydra.launcher.n_jobs=2",
        "sweep.on_error (retry) must be continue with hydra/launcher=joblib; the same command tries again what failed",
        "TF_CONFIG declares a cluster for one point at a time; leave hydra/launcher=joblib out",
    ]


def test_a_wrong_option_of_a_launcher_is_one_line_and_nothing_is_written(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="steadfast[joblib] is not installed")
    code, out, err = run(tmp_path, "-m", *JOBLIB, "hydra.launcher.njobs=2", "seed=1,2")
    assert (code, out, err) == (2, "", "error: unknown key 'hydra.launcher.njobs'; did you mean 'n_jobs'?\n")
    assert list(tmp_path.iterdir()) == []


def test_a_leash_is_held_until_it_is_let_go(leash):
    assert not leash.is_held()
    held = leash.hold()
    assert leash.is_held()
    os.close(held)
    assert not leash.is_held()


def test_a_sweep_that_is_running_is_not_run_twice(leash):
    held = leash.hold()
    with pytest.raises(ConfigError, match="the same sweep is running; wait for it, or stop it"):
        leash.hold()
    os.close(held)


def test_a_job_on_another_host_is_its_schedulers(leash):
    assert Leash(leash.path, "elsewhere").is_held()


def test_a_job_whose_sweep_is_over_does_not_begin(leash, handlers):
    job = pickle.loads(pickle.dumps(Job(["train.py"], None, ["seed"], leash, None)))
    assert job(None) == 128 + signal.SIGTERM
