"""Requirements: locks, and the one name under which this project is installed."""

import re
import tomllib
from pathlib import Path

from trainer import optional_packages

ROOT = Path(__file__).resolve().parents[1]


def locked(name):
    """Return the version and hashes of each package of a lock."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^([\w.-]+)==(\S+) ((?:\\\n +--hash=\S+ ?)+)", text, re.MULTILINE)
    return {
        package: (version, set(re.findall(r"--hash=(\S+)", hashes)))
        for package, version, hashes in blocks
    }


def test_train_lock_is_a_subset_of_the_whole_lock_without_an_index():
    train, whole = locked("requirements-train.lock"), locked("requirements.lock")
    assert train.items() <= whole.items()
    assert len(train) < len(whole) / 3
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split("[<>=]", line)[0] for line in project["dependencies"]} <= train.keys()
    for name in ("requirements-train.lock", "requirements.lock", "requirements-build.lock"):
        assert "://" not in (ROOT / name).read_text(), name


def test_installs_name_this_project_in_one_way(tmp_path, monkeypatch):
    assert optional_packages.pip_install("steadfast-trainer[mlflow]") == 'pip install ".[mlflow]"'
    monkeypatch.setattr(optional_packages, "_ROOT", tmp_path)
    installed = 'pip install "steadfast-trainer[mlflow]"'
    assert optional_packages.pip_install("steadfast-trainer[mlflow]") == installed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "steadfast-trainer"
    extras = {*project["optional-dependencies"], "name"}
    for folder in ("conf", "docs", "datasets", "models", "trainer"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".yaml", ".ipynb"):
                text = path.read_text()
                assert not re.search(r"steadfast\[|install steadfast\b(?!-)", text), path
                named = re.findall(r"(?:steadfast-trainer|install [\"']\.)\[(\w+)\]", text)
                assert extras.issuperset(named), path
