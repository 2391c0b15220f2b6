"""Runs in an object store: killed during uploads, resumed, refused."""

import json
import random
import shutil
import signal

import pytest

from tests.support import processes
from tests.support.object_stores import s3_environment, s3_server
from tests.support.training import assert_same_bits
from trainer.config import addresses
from trainer.runs.checkpoint_marker import committed_steps, verify
from trainer.store import remote_files
from trainer.store.lease import read_manifest
from trainer.store.object_store import open_store

OPTIONS = [
    "model.width=4", "train.steps=120", "batch.global_size=16", "checkpoint.every_steps=2",
    "checkpoint.every_epochs=null", "summary.every_steps=5", "restart.backoff_secs=0",
    "evaluate.every_steps=30", "evaluate.every_epochs=null",
]  # fmt: skip


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """Run a server that commands find by their environment."""
    with s3_server(tmp_path) as port:
        for name, value in s3_environment(port).items():
            monkeypatch.setenv(name, value)
        yield


def remote(tmp_path, *overrides):
    return [
        *OPTIONS, "runs_dir=s3://bucket/runs", f"store.work_dir={tmp_path / 'work'}",
        "store.lease_secs=1", *overrides,
    ]  # fmt: skip


def bring(tmp_path):
    """Return the run that a machine with an empty disk gets, and its newest step."""
    folder = tmp_path / "brought"
    shutil.rmtree(folder, ignore_errors=True)
    (name,) = open_store("s3://bucket/runs").folders()
    store = open_store(f"s3://bucket/runs/{name}")
    manifest, _ = read_manifest(store)
    assert remote_files.download(store, manifest, folder) == []
    steps = committed_steps(folder / "checkpoints")
    for step in steps:
        assert verify(folder / "checkpoints", step) is None
    return folder, max(steps, default=0)


def committed_here(tmp_path):
    """Return the steps of the checkpoints that this machine has."""
    (name,) = open_store("s3://bucket/runs").folders()
    folder = addresses.work_folder(str(tmp_path / "work"), f"s3://bucket/runs/{name}")
    return committed_steps(folder / "checkpoints")


def wait_for_uploads(log, process, count):
    """Return when the server has got that many more objects of checkpoints."""
    wanted = log.read_text().count("PUT /bucket/runs/") + count
    processes.wait_until(lambda: log.read_text().count("PUT /bucket/runs/") >= wanted, process)


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
def test_run_killed_in_uploads_ends_with_the_bits_of_an_undisturbed_local_run(tmp_path):
    chance = random.Random(0)
    newest = 0
    for _ in range(2):
        process = processes.start(tmp_path, *remote(tmp_path))
        wait_for_uploads(tmp_path / "s3.log", process, chance.randrange(1, 25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        brought, step = bring(tmp_path)
        assert step >= newest
        newest = step
        committed = committed_here(tmp_path)
        assert set(committed[:-1]) <= set(committed_steps(brought / "checkpoints"))
        shutil.rmtree(tmp_path / "work")
    out = processes.succeed(tmp_path, *remote(tmp_path))
    assert "Run directory: s3://bucket/runs/" in out
    ended, step = bring(tmp_path)
    assert step == 120
    undisturbed = processes.finished(*OPTIONS)
    assert processes.log(ended) == processes.log(undisturbed)
    assert_same_bits(processes.final_variables(ended), processes.final_variables(undisturbed))


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
def test_run_resumes_by_its_address_on_an_empty_disk_and_is_refused_elsewhere(tmp_path):
    short = ["train.steps=4"]
    out = processes.succeed(tmp_path, *remote(tmp_path, *short))
    address = out.rpartition("Run directory: ")[2].split()[0]
    shutil.rmtree(tmp_path / "work")
    out = processes.succeed(tmp_path, f"resume={address}", "train.steps=6")
    assert f"Downloaded {address}" in out
    assert bring(tmp_path)[1] == 6
    code, out, err = processes.run(tmp_path, *remote(tmp_path, *short), "resume=never")
    assert code == 2
    assert "has a run, which is not moved" in err
    code, _, err = processes.run(tmp_path, "resume=s3://bucket/runs/none")
    assert code == 2
    assert "no run there" in err


@pytest.mark.long
@pytest.mark.usefixtures("s3")
def test_search_whose_machine_is_lost_continues_on_an_empty_disk(tmp_path):
    search = [
        "-m", "search=asha", "search.min_steps=4", "search.reduction=2", "sweep.name=rates",
        "model=softmax", "optimizer.learning_rate=0.001,0.01,0.1", "dataset.validation=0.2",
        "batch.global_size=32", "train.steps=16", "evaluate.every_steps=4", "writers=[jsonl]",
    ]  # fmt: skip

    def points(work, *overrides):
        """Run the search with an empty disk; return its points, and what was printed."""
        options = [*search, "runs_dir=s3://bucket/runs", "store.lease_secs=1", *overrides]
        out = processes.succeed(tmp_path, *options, f"store.work_dir={tmp_path / work}")
        (file,) = tmp_path.glob(f"{work}/**/sweeps/rates/summary.json")
        found = json.loads(file.read_text())["points"]
        shutil.rmtree(tmp_path / work)
        return [{**point, "run": point["run"].rpartition("/")[2]} for point in found], out

    work = f"store.work_dir={tmp_path / 'lost'}"
    first = processes.start(tmp_path, *search, "runs_dir=s3://bucket/runs", work)
    sweep = open_store("s3://bucket/runs/sweeps/rates")
    processes.wait_until(lambda: "search.jsonl" in read_manifest(sweep)[0].files, first)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    shutil.rmtree(tmp_path / "lost")
    continued, _ = points("work")
    assert continued == points("local", f"runs_dir={tmp_path / 'local'}")[0]
    again, out = points("again")
    assert again == continued
    assert "started" not in out  # records tell that nothing is left to train
    out = processes.succeed(tmp_path, "report", "s3://bucket/runs/sweeps/rates")
    assert out.startswith("3 runs: ")
