"""crash.txt: the report of a crash, from failures and from files that may be damaged."""

from types import SimpleNamespace

import pytest

from trainer.cli.compose import compose
from trainer.cli.overrides import resume_override, rewrite
from trainer.launch import launcher
from trainer.runs import checkpoint_marker, crash_report
from trainer.runs.crash_report import Failure
from trainer.runs.directory import open_run

RESUME = "python train.py resume=runs/x"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The directory of a run at step 20."""
    monkeypatch.setattr("sys.argv", ["/here/train.py", "name=a b", "train.steps=40"])
    run = open_run(
        compose([f"runs_dir={tmp_path}", "train.epochs=null", "train.steps=40"]), [], None
    )
    run.release()
    for folder in ("checkpoints", "logs"):
        (run.path / folder).mkdir()
    checkpoint_marker.commit(run.path / "checkpoints", 15, None)
    (run.path / "logs" / "worker-1.log").write_text(
        "".join(f"line {number}\n" for number in range(1, 101))
    )
    return run.path


def failure(path, end="failed", **details):
    return Failure("worker-1", end, path / "logs" / "worker-1.log", **details)


def sections(path):
    """Return the sections of the file: title -> lines."""
    head, *parts = (path / "crash.txt").read_text().split("\n\n")
    titles = {"": [head]}
    for part in parts:
        title, *lines = part.splitlines()
        assert all(line.startswith("  ") for line in lines)
        titles[title] = [line[2:] for line in lines]
    return titles


def test_report_of_an_error_in_user_code(path):
    crash_report.write(
        path,
        "ValueError: no",
        [failure(path, cause="ValueError: no", text="Traceback ...\n  File\nValueError: no")],
        RESUME,
    )
    report = sections(path)
    assert report[""][0].startswith(f"{path} has crashed, ")
    assert report[""][0].endswith("; the newest checkpoint is that of step 15.")
    assert report["What happened"] == ["worker-1 failed: ValueError: no"]
    assert report["To continue"] == ["python train.py resume=runs/x"]
    assert report["Traceback"] == ["Traceback ...", "  File", "ValueError: no"]
    assert report[f"The last lines of {path / 'logs' / 'worker-1.log'}"] == [
        f"line {number}" for number in range(61, 101)
    ]
    assert "Attempts of this command" not in report


def test_report_of_repeated_kills_lists_the_attempts(path):
    error = (
        "gave up after 2 restarts (restart.max_restarts): worker-1 was killed by SIGKILL; "
        "the log is x"
    )
    crash_report.write(
        path,
        error,
        [failure(path, "lost its peers"), *[failure(path, "was killed by SIGKILL")] * 2],
        RESUME,
    )
    report = sections(path)
    assert report["What happened"][:2] == ["worker-1 was killed by SIGKILL", error]
    assert "out of memory" in report["What happened"][2]
    attempts = report["Attempts of this command"]
    assert [line.partition("  ")[2] for line in attempts[:3]] == [
        "worker-1 lost its peers",
        *["worker-1 was killed by SIGKILL"] * 2,
    ]
    assert attempts[3:] == ["restarted 2 times"]
    assert "Traceback" not in report
    (path / "logs" / "worker-1.log").write_text("x" * 10_000_000 + "\nthe end\n")
    crash_report.write(path, "why", [failure(path)], RESUME)
    assert (path / "crash.txt").stat().st_size < 200_000
    (path / "logs" / "worker-1.log").unlink()
    crash_report.write(path, "left without saving", [], RESUME)
    assert sections(path)["What happened"] == ["left without saving"]


def record(path, monkeypatch, *, changes=()):
    """Record a crash as the parent does; return what the user is shown."""
    lines = []
    console = SimpleNamespace(
        cause="why", line=lines.append, error=lambda text: lines.append(f"error: {text}")
    )
    argv = ["train.py", "resume=runs/x", "train.epochs=50"]
    run = SimpleNamespace(path=path, name=str(path), changes=list(changes))
    launcher._record_crash(run, console, [], argv)
    return lines


def test_record_crash_names_the_report_and_continues_the_run(path, monkeypatch):
    assert record(path, monkeypatch) == [
        f"error: what is known of it, and how to go on: {path}/crash.txt"
    ]
    assert sections(path)["To continue"] == [f"python train.py resume={path}"]
    record(path, monkeypatch, changes=["train.epochs: 30 -> 50"])
    assert sections(path)["To continue"] == ["python train.py resume=runs/x train.epochs=50"]
    crash_report.remove(path)
    crash_report.remove(path)
    assert not crash_report.report_path(path).exists()


def test_record_crash_warns_if_the_report_cannot_be_written(path, monkeypatch):
    monkeypatch.setattr(
        "os.replace", lambda *names: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    assert record(path, monkeypatch) == [
        f"warning: {path}/failure.json could not be written: No space left on device"
    ]
    assert not crash_report.report_path(path).exists()


@pytest.mark.parametrize("name", ["plain", "a b", "a,b=c", "it's", "(a)", "ä", "a{b}[c]", "x:y"])
def test_resume_override_quotes_any_directory(tmp_path, name):
    run = open_run(compose([f'runs_dir="{tmp_path / name}"']), ["seed=0"], None)
    run.release()
    override = resume_override(run.path)
    assert compose(rewrite([override])[0]).resume == str(run.path)
