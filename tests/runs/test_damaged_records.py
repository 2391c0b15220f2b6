"""Each file of a run, damaged in each way: a command continues, or names the file in one line."""

import json
import os
import shutil
import signal

import pytest

from tests.support.command_line import run_here
from trainer.cluster.spec import Cluster
from trainer.errors import DamagedError
from trainer.files import parse_json, read_json, write_json
from trainer.launch import launcher
from trainer.launch.processes import Log, log_of
from trainer.runs import process_status, status
from trainer.runs.directory import read_config
from trainer.runs.ledger import Ledger
from trainer.runs.process_status import HostStatus, ProcessStatus
from trainer.summaries.writers.jsonl import JsonLines

SECS = 180
OPTIONS = [
    "model=softmax", "train.steps=8", "batch.global_size=16", "checkpoint.every_steps=2",
    "checkpoint.every_epochs=null", "checkpoint.keep=9", "evaluate.every_steps=2",
    "summary.every_steps=2", "writers=[jsonl]", "launch=inline",
    "dataset.validation=0.2",
]  # fmt: skip
NEWEST = "checkpoints/ckpt-6"
FILES = [
    "config.yaml", "run.json", "metrics.jsonl", f"{NEWEST}.json", f"{NEWEST}.data-00000-of-00001",
    "logs/worker-0.log",
]  # fmt: skip
"""A file of each class: YAML, JSON, lines, a checkpoint's marker and data, text."""
READERS = [["runs"], ["status"], ["checkpoints"], ["diff"], ["report", "--output=page.html"]]


@pytest.fixture(autouse=True)
def limit():
    """End the test, also within a call of the system, if it takes too long."""

    def end(number, frame):
        raise TimeoutError(f"it has not ended in {SECS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a run of 8 steps that stopped after 6."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outcome = run_here(*OPTIONS)
        assert outcome.code == 0, outcome.err
        # As if it had been killed after step 6.
        (path,) = (folder / "runs").iterdir()
        for file in [*path.glob("checkpoints/ckpt-8.*")]:
            file.unlink()
        # Of a shorter training, so that this one is not finished.
        result = {**read_json(path / "result.json"), "step": 6, "train": {"steps": 6}}
        write_json(path / "result.json", result)
        (path / "logs").mkdir(exist_ok=True)
        (path / "logs/worker-0.log").write_text("a line\n")
        status.record_failure(path, "ValueError: no")
        process = ProcessStatus("worker-0", "train", 6, 0.0, "done")
        process_status.write(path, "worker-0", HostStatus("a", [], [process], 0))
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """The working directory with a copy of the run."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_in(folder):
    """Return the run in a folder."""
    (path,) = (path for path in (folder / "runs").iterdir() if ".old" not in path.name)
    return path


def replaced(make):
    def damage(file):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        make(file)

    return damage


def flip(file):
    content = bytearray(file.read_bytes()) or bytearray(1)
    content[len(content) * 2 // 5] ^= 4
    file.write_bytes(content)


DAMAGES = {
    "missing": replaced(lambda file: None),
    "one bit": flip,
    "wrong type": lambda file: file.write_text("[" * 100_000),
    "a pipe": replaced(os.mkfifo),
}
CASES = [
    # Each damage at least once; all pairs are for the long tests.
    pytest.param(name, damage, marks=() if (row + column) % 4 == 0 else pytest.mark.long)
    for row, name in enumerate(FILES)
    for column, damage in enumerate(DAMAGES)
]


@pytest.fixture
def as_worker(monkeypatch):
    """Train nothing, but open what a worker opens."""

    def run(context):
        path = context.directory.path
        writer = JsonLines(path, 6)
        for split in ("validation", "test"):
            writer.scalars(split, 8, {"loss": 1.0})
        writer.close()
        Log(log_of(path, Cluster().process_id), print).write(b"a line\n")
        Ledger(path).mark("step", 8)
        return 0, []

    monkeypatch.setattr(launcher, "run_inline", run)


def assert_continues_or_names(outcome, file, *codes):
    assert "Traceback" not in outcome.err
    if outcome.code not in codes:
        assert outcome.code in (1, 2), outcome
        (line,) = outcome.err.splitlines()
        assert line.startswith("error: ")
        assert file.name in line


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_command_continues_or_names_the_file(here, as_worker, name, damage):
    path = run_in(here)
    DAMAGES[damage](path / name)
    kept = shutil.copytree(path, here / "copy", symlinks=True, copy_function=copied)
    same = run_here(*OPTIONS)
    named = run_here(f"resume={kept}", "train.steps=8")
    assert_continues_or_names(same, path / name, 0)
    assert_continues_or_names(named, path / name, 0)
    assert same.code == 0, same.err


def copied(source, target, **options):
    """Copy a file, or make a pipe where there is one."""
    if os.path.exists(source) and not os.path.isfile(source):
        return os.mkfifo(target)
    return shutil.copy2(source, target, **options)


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_readers_show_what_is_left(here, name, damage):
    path = run_in(here)
    DAMAGES[damage](path / name)
    for command, *options in READERS:
        words = ["runs"] if command == "runs" else [str(path)] * (1 + (command == "diff"))
        outcome = run_here(command, *words, *options)
        assert_continues_or_names(outcome, path / name, 0, *([1] * (command == "checkpoints")))
        if command != "diff":
            assert outcome.code == (command == "checkpoints" and "DAMAGED" in outcome.out)
        if command == "runs":
            assert path.name in outcome.out


def test_any_flipped_bit_of_a_record_is_noticed(tmp_path):
    file = tmp_path / "a.json"
    record = {"name": "a", "values": [1, 2.5, None, True], "nested": {"b": "ä"}}
    write_json(file, record)
    content = file.read_bytes()
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        try:
            read = parse_json(bytes(damaged), file)
        except DamagedError:
            continue
        assert record.items() <= read.items()


def test_configuration_and_record_are_written_anew(here, as_worker):
    path = run_in(here)
    (path / "run.json").unlink()
    written = (path / "config.yaml").read_bytes()
    (path / "config.yaml").unlink()
    outcome = run_here(*OPTIONS)
    assert outcome.code == 0
    assert (path / "config.yaml").read_bytes() == written
    assert (
        f"warning: {path.relative_to(here) / 'run.json'} was lost and is started again"
        in outcome.out
    )
    assert "model=softmax" in read_json(path / "run.json")["overrides"]
    flip(path / "config.yaml")
    with pytest.raises(DamagedError, match="its content has changed"):
        read_config(path)


def test_bit_in_the_metrics_costs_its_line_alone(here, caplog):
    path = run_in(here)
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    damaged = bytearray(lines[1])
    damaged[3] ^= 0x80
    (path / "metrics.jsonl").write_bytes(b"".join([lines[0], damaged, *lines[2:]]))
    JsonLines(path, 4).close()
    expected = [line for line in [lines[0], *lines[2:]] if json.loads(line)["step"] <= 4]
    assert (path / "metrics.jsonl").read_bytes() == b"".join(expected)
    assert f"1 damaged lines of {len(lines)} are left out" in caplog.text
