"""run.json: the provenance of a run, and which of the user's modules have changed."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.files import read_json, write_json
from trainer.runs import provenance
from trainer.runs.identity import Change
from trainer.runs.provenance import ImportedCode, changed_files, code_warning


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A new run in a directory outside any repository."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    provenance.create(tmp_path / "run", ["seed=1"], None)
    return tmp_path / "run"


def edit(run, **values):
    path = run / "run.json"
    write_json(path, {**read_json(path), **values})


def git(*arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


def commit(path, text):
    path.write_text(text)
    git("add", str(path))
    git("commit", "-q", "-m", "more")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one file, which has uncommitted changes."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    commit(tmp_path / "model.py", "width = 1\n")
    (tmp_path / "model.py").write_text("width = 2\n")
    return tmp_path


def test_create_records_commit_and_uncommitted_changes(repository):
    provenance.create(repository, [], None)
    recorded = provenance.read(repository)["git"]
    assert recorded["sha"] == git("rev-parse", "HEAD").strip()
    assert "-width = 1\n+width = 2\n" in recorded["diff"]
    assert provenance.add_entry(repository, [], None, 3, []) == []
    entry = provenance.latest_command(provenance.read(repository))
    assert (entry["git"]["sha"], entry["git"]["dirty"]) == (recorded["sha"], True)


def test_secrets_of_command_and_changes_are_masked(repository, monkeypatch):
    token = "hf_" + "a1" * 17
    (repository / "model.py").write_text(f"key = '{token}'\n")
    monkeypatch.setattr("sys.argv", ["train.py", f"+model.token={token}"])
    provenance.create(repository, [f"+model.token={token}"], None)
    assert provenance.add_entry(repository, [f"+model.token={token}"], None, 3, []) == []
    text = (repository / "run.json").read_text()
    assert token not in text
    assert text.count("+model.token=<masked>") == 4
    assert "+key = '<masked>'" in provenance.read(repository)["git"]["diff"]


def test_add_entry_reports_other_versions(run):
    record = provenance.read(run)
    versions = {name: version for name, version in record["versions"].items() if name != "numpy"}
    edit(run, python="3.9.1", versions={**versions, "tensorflow": "2.3.4"})
    current = record["versions"]
    assert provenance.add_entry(run, [], None, 3, []) == [
        f"this is Python {record['python']}, the run had 3.9.1",
        f"this is tensorflow {current['tensorflow']}, the run had 2.3.4",
        f"numpy is {current['numpy']}, the run had none",
    ]
    # Against the last command, not against the first.
    assert provenance.add_entry(run, [], None, 3, []) == []


def test_lineage_has_the_changes_of_every_command(run):
    changes = [Change("seed", 1, 2), Change("jit", False, True)]
    provenance.add_entry(run, ["seed=2"], "/own", 3, changes)
    provenance.add_entry(run, ["seed=4"], None, 5, [Change("seed", 2, 4)])
    record = provenance.read(run)
    assert [entry["checkpoint"] for entry in record["lineage"]] == [3, 5]
    assert provenance.latest_command(record)["overrides"] == ["seed=4"]
    assert record["lineage"][0].keys() >= {"argv", "config_dir", "started", "host", "versions"}
    assert provenance.changed_values(record) == {"seed": 4, "jit": True}
    provenance.withdraw_entry(run)
    assert provenance.changed_values(provenance.read(run)) == {"seed": 2, "jit": True}
    assert provenance.latest_command({"overrides": ["a"]}) == {"overrides": ["a"]}
    assert provenance.changed_values({}) == {}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's project, of which the modules are imported that a test names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine").mkdir()
    for name in ("mine/__init__", "mine/net", "mine/layers", "single"):
        (tmp_path / f"{name}.py").write_text("width = 1\n")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "single")]:
        del sys.modules[name]


def fingerprints_of(*modules):
    code = ImportedCode()
    for name in modules:
        importlib.import_module(name)
    code.update()
    mine = {n: f for n, f in code.fingerprints.items() if n.partition(".")[0] in ("mine", "single")}
    assert not {"numpy", "yaml", "os", "pytest", "trainer.runs.provenance"} & {*code.fingerprints}
    return mine


def warning(code):
    Path("run.json").write_text(json.dumps({"code": code}))
    return code_warning(Path())


def test_module_of_the_user_is_recorded_as_it_was_first_seen(project):
    code = ImportedCode()
    importlib.import_module("mine.net")
    code.update()
    assert changed_files({"code": code.fingerprints}) == []
    (project / "mine" / "net.py").write_text("width = 2\n")
    importlib.import_module("single")
    code.update()
    assert {"mine", "mine.net", "single"} <= {*code.fingerprints}
    assert code.fingerprints["mine.net"]["file"] == str(project / "mine" / "net.py")
    assert changed_files({"code": code.fingerprints}) == ["mine/net.py"]


def test_changed_names_edited_and_missing_files(project, monkeypatch):
    code = fingerprints_of("mine.net", "mine.layers", "single")
    for fingerprint in code.values():  # the project was moved
        fingerprint["file"] = f"/elsewhere/{Path(fingerprint['file']).name}"
    assert warning(code) is None
    code["single"]["file"] = str(project / "single.py")
    (project / "mine" / "net.py").write_text("width = 2\n")
    (project / "single.py").unlink()
    assert "trained with other code in mine/net.py, single.py; " in warning(code)
    monkeypatch.setattr(provenance, "_MAX_NAMES", 1)
    assert "other code in mine/net.py and 1 more; " in warning(code)
    (project / "mine" / "net.py").write_text("width = 1\n")
    (project / "single.py").write_text("width = 1\n")
    assert warning(code) is None
    assert warning(None) is warning("text") is None
