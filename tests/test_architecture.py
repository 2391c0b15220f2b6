"""The shape of the code: which package may import which, and what may stand where."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ORDER = (
    "fitting",
    "main notebook",
    "dispatch",
    "cli.commands",
    "sweep",
    "launch",
    "worker",
    "own_loop",
    "strategies",
    "reinforcement",
    "tasks callbacks metrics optimizers schedules",
    "engine",
    "engine.graph",
    "summaries",
    "cli",
    "store",
    "cluster",
    "runs",
    "config",
    "protocols",
    "base",
)
"""A package imports only from rows below its own, and from itself."""

BASE = {
    "annotations", "errors", "files", "text", "keras_objects",
    "logical_devices", "optional_packages", "user_cache",
}  # fmt: skip
"""Modules that everybody may import; they stand at the top of `trainer/`."""

ROW = {package: number for number, row in enumerate(ORDER) for package in row.split()}

WITHOUT_TENSORFLOW = {
    "main", "notebook", "dispatch", "sweep", "launch", "strategies", "cli",
    "cli.commands", "store", "cluster", "runs", "config", "protocols", "base",
    "worker.process", "worker.error_summary", "worker.parent_watch",
}  # fmt: skip
"""Packages and modules that the parent process imports: nothing heavy at their top."""

HEAVY = {"tensorflow", "tf_keras", "keras", "tensorboard", "numpy", "h5py", "PIL"}


def parse(folder):
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py"))}


TRAINER, MODELS, DATASETS = parse("trainer"), parse("models"), parse("datasets")
EVERYTHING = {**TRAINER, **MODELS, **DATASETS}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "trainer" else ("trainer", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in EVERYTHING}


def package(module):
    """Return the row entry of a module: `trainer.engine.graph.loops.x` is in `engine.graph`."""
    parts = module.split(".")[1:]
    if ".".join(parts[:2]) in ("engine.graph", "cli.commands"):
        return ".".join(parts[:2])
    if not parts or parts[0] in BASE:
        return "base"
    return parts[0]


def imports(tree):
    """Return (line, module) of every import in a parsed module."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in MODULES else node.module) for name in names]
    return found


def at(path, line):
    return f"{path.relative_to(ROOT)}:{line}"


def is_light(module):
    return package(module) in WITHOUT_TENSORFLOW or module.partition(".")[2] in WITHOUT_TENSORFLOW


def test_every_package_has_a_row():
    found = {
        package(module)
        for module in MODULES
        if module.split(".")[1:2] not in (["models"], ["datasets"])
    }
    assert found == set(ROW)


def test_packages_import_only_from_rows_below():
    wrong = [
        f"{at(path, line)}: {package(module_name(path))} imports {name}"
        for path, tree in TRAINER.items()
        for line, name in imports(tree)
        if name in MODULES
        and package(name) != package(module_name(path))
        and ROW[package(name)] <= ROW[package(module_name(path))]
    ]
    assert wrong == []


def test_there_are_no_import_cycles():
    graph = {
        module_name(path): {name for _, name in imports(tree)} & MODULES
        for path, tree in TRAINER.items()
    }
    done, open_modules = set(), []

    def visit(module):
        assert module not in open_modules, " -> ".join(
            [*open_modules[open_modules.index(module) :], module]
        )
        if module in done:
            return
        open_modules.append(module)
        for imported in sorted(graph[module] - {module}):
            visit(imported)
        done.add(open_modules.pop())

    for module in sorted(graph):
        visit(module)


def test_parent_starts_without_tensorflow(tmp_path):
    for name in HEAVY:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    light = [module for module in sorted(MODULES) if is_light(module)]
    # Modules of an optional package are imported only where it is installed.
    light.remove("trainer.sweep.optuna_search")
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print('done')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code, *light],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_engine_knows_no_model_and_no_dataset_and_they_know_no_engine():
    ours = ("trainer.models", "trainer.datasets")
    shared = ("trainer.protocols", *(f"trainer.{name}" for name in BASE))
    wrong = [
        f"{at(path, line)} imports {name}"
        for path, tree in EVERYTHING.items()
        for line, name in imports(tree)
        if name.startswith("trainer.") and not name.startswith(shared)
        and [module_name(path).startswith(x) for x in ours] != [name.startswith(x) for x in ours]
    ]  # fmt: skip
    assert wrong == []


def test_only_a_strategy_depends_on_which_strategy_it_is():
    # "auto" is a value of other keys too.
    names = {path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml")} - {"auto"}
    wrong = []
    for path, tree in EVERYTHING.items():
        if "strategies" in path.parts:
            continue
        for node in ast.walk(tree):
            is_match = isinstance(node, ast.Match) and "strategy" in ast.unparse(node.subject)
            literal = isinstance(node, ast.Compare) and any(
                isinstance(value, ast.Constant) and value.value in names for value in ast.walk(node)
            )
            kind = (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "isinstance"
                and (
                    "Strategy" in ast.unparse(node.args[1])
                    or "strateg" in ast.unparse(node.args[0])
                )
            )
            if is_match or literal or kind:
                wrong.append(f"{at(path, node.lineno)}: {ast.unparse(node)}")
    assert wrong == []


# A variable names Keras' folder, and one hides the GPUs from a process that reads.
IN_ONE_PLACE = {
    r"\bos\.(environb?\b|getenv|putenv|unsetenv)": {
        "trainer/cluster/environment.py", "trainer/keras_objects.py",
        "datasets/records/reading_processes.py",
    },
    r"\bsys\.path(\.|\[| =| \+=)": {"trainer/cluster/environment.py"},
    r"\bhydra\.utils\b": {"trainer/config/instantiate.py"},
}  # fmt: skip


@pytest.mark.parametrize("what", IN_ONE_PLACE)
def test_what_has_one_place_is_nowhere_else(what):
    found = {str(x.relative_to(ROOT)) for x in EVERYTHING if re.search(what, x.read_text())}
    assert found == IN_ONE_PLACE[what]


def test_every_path_in_the_guide_and_in_sources_exists():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    names = [
        path
        for name in re.findall(r"`([\w./{},-]*/[\w./{},-]*)`", guide)
        for path in expand(name)
        if not path.startswith((".venv", "site"))  # made by make
    ]
    assert len(names) > 30
    assert [name for name in names if not (ROOT / name).exists()] == []
    sources = "".join(path.read_text() for path in EVERYTHING)
    mentioned = re.findall(r"\b(?:tests|docs/adr)/[\w/-]+(?:\.\w+)?", sources)
    assert [name for name in mentioned if not (ROOT / name).exists()] == []


def expand(name):
    """Return the paths that `a/{b,c}/` stands for."""
    before, brace, rest = name.partition("{")
    if not brace:
        return [name]
    middle, _, after = rest.partition("}")
    return [before + part + after for part in middle.split(",")]
