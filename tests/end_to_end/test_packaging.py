"""The wheel: what is in it, and that it runs where there is no checkout."""

import json
import os
import shutil
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support.processes import run_program

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "trainer": "trainer",
    "models": "trainer/models",
    "datasets": "trainer/datasets",
    "conf": "trainer/conf",
}
CARRIED = (".py", ".yaml", ".npz", ".csv")


def run(*command, cwd):
    """Run a program that finds no checkout; return what it printed."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run_program(*command, cwd=cwd, env=env)


def in_wheel(folder):
    """Return the names in the wheel of what a folder of the repository carries."""
    files = (
        file
        for file in (ROOT / folder).rglob("*")
        if file.suffix in CARRIED and "__pycache__" not in file.parts
    )
    return {f"{FOLDERS[folder]}/{file.relative_to(ROOT / folder).as_posix()}" for file in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel, from a copy: a build leaves folders behind."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*pip, "--wheel-dir", target, source, cwd=target)
    return next(target.glob("steadfast_trainer-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel with this environment's packages; return the folder of its commands."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=environment)
    path = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", path, cwd=environment).strip())
    # Python ignores .pth files in a path that comes from a .pth file: an editable Steadfast is
    # not found there.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


@pytest.fixture
def project(tmp_path):
    """Return a copy of the example of a user's project."""
    return Path(shutil.copytree(ROOT / "docs" / "examples" / "own_project", tmp_path / "project"))


def test_every_package_is_listed_in_pyproject():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        FOLDERS[folder] + "/" + str(init.parent.relative_to(ROOT / folder))
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(listed) == {name.removesuffix("/.").replace("/", ".") for name in found}


@pytest.mark.slow
def test_wheel_contains_every_file_below_one_top_level_name(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    (metadata,) = {name.split("/")[0] for name in names} - {"trainer"}
    assert metadata.endswith(".dist-info")
    for folder in FOLDERS:
        assert set() < in_wheel(folder) <= set(names), folder


@pytest.mark.slow
def test_installed_command_runs_without_a_checkout(installed, tmp_path):
    where = run(
        installed / "python",
        "-c",
        "import trainer, trainer.models; print(trainer.__file__, trainer.models.__file__)",
        cwd=tmp_path,
    )
    assert str(ROOT) not in where
    assert "optimizer" in run(installed / "steadfast", "--help", cwd=tmp_path)
    assert "_target_: trainer.models" in run(installed / "steadfast", "--cfg", "job", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_own_project_trains_with_the_installed_command(installed, project):
    def steadfast(*arguments):
        return run(installed / "steadfast", *arguments, cwd=project)

    assert "listener" in steadfast("help", "model")
    recipe = ("experiment=first_try",)
    shown = yaml.safe_load(steadfast(*recipe, "--cfg", "job"))
    assert shown["model"]["_target_"] == "nets.listener"
    assert shown["optimizer"]["learning_rate"] == 0.01  # theirs, under the name of ours
    assert not (project / "runs").exists()

    steadfast(*recipe, "train.steps=20")
    (path,) = project.glob("runs/listener-waves-*")
    assert json.loads((path / "result.json").read_text())["step"] == 20
    again = yaml.safe_load(steadfast(f"resume={path}", "--cfg", "job"))
    assert (again["model"]["filters"], again["train"]["steps"]) == (8, 20)
