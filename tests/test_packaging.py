"""The wheel: what is in it, and that it runs where there is no checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"trainer": "trainer", "models": "trainer/models", "datasets": "trainer/datasets", "conf": "trainer/conf"}
CARRIED = (".py", ".yaml", ".npz")


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command to its end and gives what it printed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def in_wheel(folder: str) -> set[str]:
    """Gives the names in the wheel of what a folder of the repository carries."""
    files = (file for file in (ROOT / folder).rglob("*") if file.suffix in CARRIED and "__pycache__" not in file.parts)
    return {f"{FOLDERS[folder]}/{file.relative_to(ROOT / folder).as_posix()}" for file in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel, from a copy: a build leaves folders behind."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, source)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", target, source, cwd=target)
    return next(target.glob("steadfast-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel into an environment that borrows this one's packages; gives its folder of commands."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=environment)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment).strip())
    # A path that comes from a .pth file has its own .pth files ignored: an editable Steadfast there stays out of sight.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Makes a user's own project: a model in a package of theirs, and its choice in a configuration directory of theirs."""
    package, choices = tmp_path / "my_package", tmp_path / "my_conf" / "model"
    package.mkdir()
    choices.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text(
        "from tensorflow import keras\n\n\n"
        "def net(input_shape, num_classes, *, width: int = 4):\n"
        "    flat = keras.layers.Flatten(input_shape=input_shape)\n"
        "    return keras.Sequential([flat, keras.layers.Dense(width), keras.layers.Dense(num_classes)])\n"
    )
    (choices / "mine.yaml").write_text("_target_: my_package.net.net\nwidth: 8\n")
    return tmp_path


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        FOLDERS[folder] + "/" + str(init.parent.relative_to(ROOT / folder))
        for folder in FOLDERS
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(listed) == {name.removesuffix("/.").replace("/", ".") for name in found}


@pytest.mark.slow
def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    (metadata,) = names - {"trainer"}
    assert metadata.endswith(".dist-info")


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_wheel_carries_everything(wheel: Path, folder: str) -> None:
    expected = in_wheel(folder)
    assert expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_installed_command_runs_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    where = run(
        installed / "python", "-c", "import trainer, trainer.models; print(trainer.__file__, trainer.models.__file__)", cwd=tmp_path
    )
    assert str(ROOT) not in where
    assert "optimizer" in run(installed / "steadfast", "--help", cwd=tmp_path)
    assert "_target_: trainer.models" in run(installed / "steadfast", "--cfg", "job", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_installed_command_trains_a_users_own_model(installed: Path, project: Path) -> None:
    own = ["--config-dir", "my_conf", "model=mine"]
    assert "_target_: my_package.net.net" in run(installed / "steadfast", *own, "--cfg", "job", cwd=project)
    run(installed / "steadfast", *own, "strategy=one_device", "train.steps=2", "train.epochs=null", cwd=project)
    (result,) = project.glob("runs/*/result.json")
    assert '"step": 2' in result.read_text()
