"""The user's own modules of a run: which they are, and which of them have changed."""

import importlib
import sys
from pathlib import Path

import pytest

from trainer.runs import user_code
from trainer.runs.user_code import ImportedCode, changed, warning


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
    assert not {"numpy", "yaml", "os", "pytest", "trainer.runs.user_code"} & {*code.fingerprints}
    return mine


def test_imported_modules_of_the_user_are_recorded(project):
    code = fingerprints_of("mine.net", "single")
    assert sorted(code) == ["mine", "mine.net", "single"]
    assert code["mine.net"]["file"] == str(project / "mine" / "net.py")
    assert changed(code) == []


def test_program_itself_is_not_recorded_under_any_of_its_names(project, monkeypatch):
    importlib.import_module("single")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["single"])
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["single"])  # multiprocessing's
    code = ImportedCode()
    code.update()
    assert not {"__main__", "__mp_main__"} & {*code.fingerprints}


def test_function_that_autograph_has_written_is_not_recorded(project, monkeypatch):
    generated = project / "__autograph_generated_file1.py"
    generated.write_text("width = 1\n")
    monkeypatch.setitem(sys.modules, generated.stem, importlib.import_module(generated.stem))
    code = ImportedCode()
    code.update()
    assert generated.stem not in code.fingerprints


def test_module_is_recorded_as_it_was_first_seen(project):
    code = ImportedCode()
    importlib.import_module("mine.net")
    code.update()
    (project / "mine" / "net.py").write_text("width = 2\n")
    importlib.import_module("single")
    code.update()
    assert "single" in code.fingerprints
    assert changed(code.fingerprints) == ["mine/net.py"]


def test_models_of_a_checkout_are_the_users():
    importlib.import_module("trainer.models.layers.inputs")
    code = ImportedCode()
    code.update()
    assert "trainer.models.layers.inputs" in code.fingerprints
    assert not [name for name in code.fingerprints if name.startswith("trainer.runs")]


def test_changed_names_edited_and_missing_files(project):
    code = fingerprints_of("mine.net", "mine.layers", "single")
    (project / "mine" / "net.py").write_text("width = 2\n")
    (project / "single.py").unlink()
    assert changed(code) == ["mine/net.py", "single.py"]
    assert "trained with other code in mine/net.py, single.py; " in warning(code)
    (project / "mine" / "net.py").write_text("width = 1\n")
    (project / "single.py").write_text("width = 1\n")
    assert warning(code) is None


def test_moved_project_has_not_changed(project, monkeypatch):
    code = fingerprints_of("mine.net", "single")
    for fingerprint in code.values():
        fingerprint["file"] = f"/elsewhere/{Path(fingerprint['file']).name}"
    assert changed(code) == []


def test_warning_counts_the_files_beyond_the_first(project, monkeypatch):
    monkeypatch.setattr(user_code, "_MAX_NAMES", 1)
    code = fingerprints_of("mine.net", "mine.layers")
    for name in ("net", "layers"):
        (project / "mine" / f"{name}.py").unlink()
    assert "other code in mine/layers.py and 1 more; " in warning(code)


@pytest.mark.parametrize("record", [None, [], "text", {}])
def test_run_without_a_record_of_code_has_no_warning(record):
    assert warning(record) is None
