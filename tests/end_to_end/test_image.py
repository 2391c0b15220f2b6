"""The text of the Dockerfile; `test_built_image` builds it, where there is a base image."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, what comes before the first one left out."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: list[list[tuple[str, str]]] = []
    for line in text.replace("\\\n", "").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        if found and name:
            found[-1].append((name, rest.strip()))
    return found


def all_of(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for instruction, rest in stage if instruction == name]


def test_image_has_the_python_of_the_lock() -> None:
    version = re.search(r"^ARG BASE=python:([\d.]+)-", (ROOT / "Dockerfile").read_text(), re.M)
    assert version
    for lock in ("requirements.lock", "requirements-train.lock", "requirements-build.lock"):
        assert f"pip-compile with Python {version[1]}\n" in (ROOT / lock).read_text(), lock
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["project"]["classifiers"]


def test_image_installs_the_locked_requirements_alone(
    stages: list[list[tuple[str, str]]], tmp_path: Path
) -> None:
    commands = [part.strip() for line in all_of(stages[0], "RUN") for part in line.split("&&")]
    installs = [command for command in commands if command.startswith("pip install")]
    *locked, own = installs
    assert all("--require-hashes" in command for command in locked)
    assert shlex.split(own) == ["pip", "install", "--no-deps", "--no-build-isolation", "."]
    assert "-c requirements.lock" in locked[-1]
    (picker,) = [command for command in commands if command.endswith("> pip.txt")]
    (tmp_path / "requirements.lock").write_bytes((ROOT / "requirements.lock").read_bytes())
    subprocess.run(picker, shell=True, cwd=tmp_path, check=True, timeout=60)
    block = (tmp_path / "pip.txt").read_text()
    assert re.fullmatch(r"pip==[\d.]+( \\\n +--hash=sha256:[0-9a-f]{64})+\n", block), block
    (lister,) = [command for command in commands if command.endswith("> needed.txt")]
    words = shlex.split(lister.removesuffix("> needed.txt"))
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    printed = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=tmp_path,
        env={**os.environ, "EXTRAS": "s3 gcs"},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    optional = PROJECT["project"]["optional-dependencies"]
    assert printed == [*PROJECT["project"]["dependencies"], *optional["s3"], *optional["gcs"]]
