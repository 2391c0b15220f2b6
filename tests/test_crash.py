"""crash.txt: what a crash leaves in the run directory, of what processes told and of files it may have damaged."""

import json
from types import SimpleNamespace

import pytest

from trainer import crash, launch, markers, provenance
from trainer.cli import compose
from trainer.crash import Failure
from trainer.overrides import resume_override, rewrite
from trainer.rundir import open_run

RESUME = ["train.py", "resume=runs/x"]


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A run that has come to step 20."""
    monkeypatch.setattr("sys.argv", ["/here/train.py", "name=a b", "train.steps=40"])
    run = open_run(compose([f"runs_dir={tmp_path}", "train.epochs=null", "train.steps=40"]), [], None)
    run.release()
    for folder in ("checkpoints", "logs"):
        (run.path / folder).mkdir()
    markers.commit(run.path / "checkpoints", 15, None)
    provenance.complete(run.path, ["/device:CPU:0", "/device:CPU:1"], 2, 40)
    lines = [{"step": step, "split": "train", "epoch": 1, "loss": 1 / step, "learning_rate": 0.001} for step in range(1, 21)]
    (run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (run.path / "logs" / "worker-1.log").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    return run.path


def failure(path, how="failed", **told):
    return Failure("worker-1", how, path / "logs" / "worker-1.log", **told)


def sections(path):
    """Gives the file's sections: title and lines."""
    head, *parts = (path / "crash.txt").read_text().split("\n\n")
    titles = {"": [head]}
    for part in parts:
        title, *lines = part.splitlines()
        assert all(line.startswith("  ") for line in lines)
        titles[title] = [line[2:] for line in lines]
    return titles


def test_the_users_error(path):
    crash.write(path, "ValueError: no", [failure(path, cause="ValueError: no", text="Traceback ...\n  File\nValueError: no")], RESUME)
    told = sections(path)
    assert told[""][0].startswith(f"{path} has crashed, ")
    assert told[""][0].endswith("; the newest checkpoint is that of step 15.")
    assert told["What happened"] == ["worker-1 failed: ValueError: no"]
    assert told["To go on"] == ["python train.py resume=runs/x"]
    assert told["What it told"] == ["Traceback ...", "  File", "ValueError: no"]
    assert told[f"The last lines of {path / 'logs' / 'worker-1.log'}"] == [f"line {number}" for number in range(61, 101)]
    metrics = told["The last metrics"]
    assert (len(metrics), metrics[-1]) == (8, "step 20  train  epoch 1  loss 0.05  learning_rate 0.001")
    code = told["Code, versions, devices"]
    assert code[0] == "started with: python /here/train.py 'name=a b' train.steps=40"
    assert code[2].startswith("versions: python 3.")
    assert ", tensorflow 2." in code[2]
    assert code[3] == "devices: /device:CPU:0, /device:CPU:1"
    assert "Attempts of this command" not in told


def test_a_process_that_was_killed_until_the_budget_was_used_up(path):
    why = "gave up after 2 restarts (restart.max_restarts): worker-1 was killed by SIGKILL; the log is x"
    crash.write(path, why, [failure(path, "lost its peers"), *[failure(path, "was killed by SIGKILL")] * 2], RESUME)
    told = sections(path)
    assert told["What happened"][:2] == ["worker-1 was killed by SIGKILL", why]
    assert "out of memory" in told["What happened"][2]
    attempts = told["Attempts of this command"]
    assert [line.partition("  ")[2] for line in attempts[:3]] == ["worker-1 lost its peers", *["worker-1 was killed by SIGKILL"] * 2]
    assert attempts[3:] == ["restarted 2 times"]
    assert "What it told" not in told


def test_before_any_process_failed_there_is_the_error_alone(path):
    crash.write(path, "a second SIGTERM: left without saving; there is no checkpoint yet", [], RESUME)
    assert sections(path)["What happened"] == ["a second SIGTERM: left without saving; there is no checkpoint yet"]


@pytest.mark.parametrize("damage", ["{", "[]", "", '{"argv": 5}'])
def test_damaged_files_hide_nothing_else(path, damage):
    (path / "run.json").write_text(damage)
    (path / "metrics.jsonl").write_bytes(b'{"step": 1, "split": "train", "loss": 0.5}\n{"step": 2, "spl\xff')
    (path / "logs" / "worker-1.log").unlink()
    crash.write(path, "why", [failure(path)], RESUME)
    told = sections(path)
    assert told["The last metrics"] == ["step 1  train  loss 0.5", '{"step": 2, "spl\N{REPLACEMENT CHARACTER}']
    assert told["Code, versions, devices"][0].startswith("not known: ")


def test_a_long_log_is_not_read_whole(path):
    (path / "logs" / "worker-1.log").write_text("x" * 10_000_000 + "\nthe end\n")
    crash.write(path, "why", [failure(path)], RESUME)
    assert (path / "crash.txt").stat().st_size < 200_000


def test_the_environment_is_not_told(path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "a-secret")
    crash.write(path, "why", [failure(path)], RESUME)
    text = (path / "crash.txt").read_text()
    assert "a-secret" not in text
    assert "API_TOKEN" not in text


def test_it_is_gone_when_the_run_goes_on(path):
    crash.write(path, "why", [], RESUME)
    crash.forget(path)
    crash.forget(path)
    assert not crash.path_in(path).exists()


def record(path, monkeypatch, *, changes=()):
    """Records a crash as the parent does; gives what the user is told."""
    monkeypatch.setattr("sys.argv", ["train.py", "resume=runs/x", "train.epochs=50"])
    said = []
    console = SimpleNamespace(cause="why", line=said.append, error=lambda text: said.append(f"error: {text}"))
    launch._record_crash(SimpleNamespace(path=path, changes=list(changes)), console, [])
    return said


def test_the_last_error_names_it_and_the_run_alone_continues_it(path, monkeypatch):
    assert record(path, monkeypatch) == [f"error: what is known of it, and how to go on: {path}/crash.txt"]
    assert sections(path)["To go on"] == [f"python train.py resume={path}"]


def test_what_the_command_changed_is_part_of_how_to_go_on(path, monkeypatch):
    record(path, monkeypatch, changes=["train.epochs: 30 -> 50"])
    assert sections(path)["To go on"] == ["python train.py resume=runs/x train.epochs=50"]


def test_where_it_cannot_be_written_there_is_one_warning(path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert record(path, monkeypatch) == [f"warning: {path}/failure.json could not be written: No space left on device"]
    assert not crash.path_in(path).exists()


@pytest.mark.parametrize("name", ["plain", "a b", "a,b=c", "it's", "(a)", "ä", "a{b}[c]", "x:y"])
def test_any_directory_can_be_named_to_go_on_with(tmp_path, name):
    run = open_run(compose([f'runs_dir="{tmp_path / name}"']), ["seed=0"], None)
    run.release()
    override = resume_override(run.path)
    assert compose(rewrite([override])[0]).resume == str(run.path)
