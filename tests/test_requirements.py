"""The locked requirements: those of training are a part of all."""

import re
import tomllib
from pathlib import Path

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
