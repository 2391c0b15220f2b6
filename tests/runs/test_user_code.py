"""The user's own modules of a run: which they are, and which of them have changed."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from trainer.runs import provenance
from trainer.runs.provenance import ImportedCode, changed_files, code_warning


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


def changed(code):
    return changed_files({"code": code})


def warning(code):
    Path("run.json").write_text(json.dumps({"code": code}))
    return code_warning(Path())


def test_imported_modules_of_the_user_are_recorded(project):
    code = fingerprints_of("mine.net", "single")
    assert sorted(code) == ["mine", "mine.net", "single"]
    assert code["mine.net"]["file"] == str(project / "mine" / "net.py")
    assert changed(code) == []


def test_program_itself_and_what_autograph_has_written_are_not_recorded(project, monkeypatch):
    generated = project / "__autograph_generated_file1.py"
    generated.write_text("width = 1\n")
    monkeypatch.setitem(sys.modules, generated.stem, importlib.import_module(generated.stem))
    importlib.import_module("single")
    for name in ("__main__", "__mp_main__"):  # multiprocessing's
        monkeypatch.setitem(sys.modules, name, sys.modules["single"])
    code = ImportedCode()
    code.update()
    assert not {generated.stem, "__main__", "__mp_main__"} & {*code.fingerprints}


def test_module_is_recorded_as_it_was_first_seen(project):
    code = ImportedCode()
    importlib.import_module("mine.net")
    code.update()
    (project / "mine" / "net.py").write_text("width = 2\n")
    importlib.import_module("single")
    code.update()
    assert "single" in code.fingerprints
    assert changed(code.fingerprints) == ["mine/net.py"]


def test_changed_names_edited_and_missing_files(project, monkeypatch):
    code = fingerprints_of("mine.net", "mine.layers", "single")
    for fingerprint in code.values():  # the project was moved
        fingerprint["file"] = f"/elsewhere/{Path(fingerprint['file']).name}"
    assert changed(code) == []
    code["single"]["file"] = str(project / "single.py")
    (project / "mine" / "net.py").write_text("width = 2\n")
    (project / "single.py").unlink()
    assert changed(code) == ["mine/net.py", "single.py"]
    assert "trained with other code in mine/net.py, single.py; " in warning(code)
    monkeypatch.setattr(provenance, "_MAX_NAMES", 1)
    assert "other code in mine/net.py and 1 more; " in warning(code)
    (project / "mine" / "net.py").write_text("width = 1\n")
    (project / "single.py").write_text("width = 1\n")
    assert warning(code) is None
    assert warning(None) is warning("text") is None
