"""The shape of the code: who may import whom, and what may stand where."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (
    ("trainer.main",),
    ("trainer.cli",),
    ("trainer.commands.report",),
    ("trainer.sweep",),
    ("trainer.verify", "trainer.verify_run"),
    (
        "trainer.commands.checkpoints",
        "trainer.commands.completion",
        "trainer.commands.diff",
        "trainer.commands.runs",
        "trainer.differences",
        "trainer.launch",
    ),
    ("trainer.commands.arguments", "trainer.report"),
    ("trainer.supervisor",),
    ("trainer.group",),
    ("trainer.watchdog",),
    ("trainer.process",),
    ("trainer.worker",),
    ("trainer.modes",),
    ("trainer.export", "trainer.predict"),
    ("trainer.model_card",),
    ("trainer.build",),
    ("trainer.engine",),
    ("trainer.reporting",),
    ("trainer.introduction", "trainer.memory", "trainer.probe", "trainer.profiler"),
    ("trainer.server", "trainer.sidecar"),
    ("trainer.evaluation",),
    ("trainer.measures",),
    ("trainer.outputs",),
    ("trainer.chunks",),
    ("trainer.loop",),
    ("trainer.metric_names", "trainer.mistakes"),
    ("trainer.pictures",),
    ("trainer.callbacks", "trainer.metrics", "trainer.strategies", "trainer.tasks", "trainer.optimizers", "trainer.schedules"),
    ("trainer.shipping", "trainer.step"),
    ("trainer.guard",),
    ("trainer.writers",),
    ("trainer.checkpoint", "trainer.hparams", "trainer.input", "trainer.state"),
    ("trainer.snapshot", "trainer.turns"),
    ("trainer.compression", "trainer.shared_memory"),
    ("trainer.peers", "trainer.shards"),
    ("trainer.completion",),
    ("trainer.composition", "trainer.predictions", "trainer.selection"),
    ("trainer.crash", "trainer.explain", "trainer.faults", "trainer.helptext", "trainer.outcome", "trainer.overrides", "trainer.refusals"),
    ("trainer.console", "trainer.rundir"),
    ("trainer.choices", "trainer.crew", "trainer.screen"),
    ("trainer.arguments", "trainer.comments", "trainer.searchpath"),
    ("trainer.batching", "trainer.cluster", "trainer.collectives", "trainer.identity", "trainer.policies", "trainer.randomness"),
    ("trainer.channel", "trainer.ledger", "trainer.markers", "trainer.pace", "trainer.protocols", "trainer.schedulers"),
    ("trainer.config",),
    ("trainer.schema",),
    ("trainer.targets",),
    ("trainer.instantiation", "trainer.provenance", "trainer.signatures", "trainer.tf_config"),
    ("trainer.formats", "trainer.rows", "trainer.rules", "trainer.tables"),
    ("trainer.files",),
    ("trainer.commands", "trainer.errors", "trainer.exitcodes", "trainer.isolation", "trainer.lifeline", "trainer.signals", "trainer"),
)
"""Arrows point downward only: a module imports from later lines, and a package's own modules one another."""

PARENT = {
    "trainer", "trainer.arguments", "trainer.choices", "trainer.comments", "trainer.composition", "trainer.searchpath",
    "trainer.batching", "trainer.build", "trainer.channel", "trainer.cli",
    "trainer.cluster", "trainer.config",
    "trainer.console", "trainer.crash", "trainer.crew", "trainer.screen",
    "trainer.errors", "trainer.exitcodes", "trainer.explain", "trainer.faults", "trainer.files",
    "trainer.helptext", "trainer.identity", "trainer.instantiation",
    "trainer.launch", "trainer.ledger", "trainer.overrides", "trainer.pace", "trainer.policies", "trainer.protocols", "trainer.rules",
    "trainer.commands.completion", "trainer.completion",
    "trainer.commands.report", "trainer.report", "trainer.report.charts", "trainer.report.data", "trainer.report.details",
    "trainer.report.page", "trainer.report.style",
    "trainer.commands", "trainer.commands.arguments", "trainer.commands.checkpoints", "trainer.commands.diff", "trainer.commands.runs",
    "trainer.markers", "trainer.provenance", "trainer.rundir", "trainer.schema",
    "trainer.signatures", "trainer.strategies", "trainer.strategies.base", "trainer.strategies.mirrored",
    "trainer.strategies.auto", "trainer.strategies.central_storage", "trainer.strategies.devices", "trainer.strategies.tpu",
    "trainer.strategies.multi_worker", "trainer.strategies.parameter_server", "trainer.strategies.one_device", "trainer.group",
    "trainer.isolation", "trainer.lifeline", "trainer.main", "trainer.process", "trainer.schedulers", "trainer.supervisor",
    "trainer.targets",
    "trainer.predictions", "trainer.refusals", "trainer.selection", "trainer.signals", "trainer.tf_config", "trainer.watchdog",
    "trainer.worker",
    "trainer.differences", "trainer.verify", "trainer.verify_run", "trainer.outcome", "trainer.sweep", "trainer.sweep.points",
    "trainer.sweep.candidates", "trainer.sweep.random_search", "trainer.sweep.search", "trainer.sweep.space",
    "trainer.sweep.summary", "trainer.sweep.table", "trainer.tables",
    "trainer.sweep.driver", "trainer.sweep.job",
    "trainer.sweep.launchers", "trainer.sweep.grid", "trainer.sweep.point_run", "trainer.sweep.process",
    "trainer.sweep.slots",
}  # fmt: skip
"""What the parent process imports, or may: no TensorFlow and nothing heavy at their top."""

HEAVY = {"tensorflow", "tf_keras", "keras", "tensorboard", "numpy", "h5py", "PIL"}


def sources(*folders):
    return {path: ast.parse(path.read_text()) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}


TRAINER, MODELS, DATASETS = sources("trainer"), sources("models"), sources("datasets")
EVERYTHING = {**TRAINER, **MODELS, **DATASETS}


def module_of(path):
    """Gives the name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "trainer" else ("trainer", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in EVERYTHING}


def imports(tree, *, top_level=False):
    """Gives (line, dotted name) of what is imported at run time: not under `if TYPE_CHECKING`."""

    def walk(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if top_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(child, ast.Import):
                yield from ((child.lineno, alias.name) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    name = f"{child.module}.{alias.name}"
                    yield child.lineno, name if name in MODULES else child.module
            yield from walk(child)

    return list(walk(tree))


def at(path, line):
    return f"{path.relative_to(ROOT)}:{line}"


def layer(module):
    for number, names in enumerate(LAYERS):
        if any(module == name or (name != "trainer" and module.startswith(f"{name}.")) for name in names):
            return number
    raise AssertionError(f"{module} has no place among the LAYERS of {Path(__file__).name}; give it one")


def test_no_import_is_relative():
    assert not [
        at(path, node.lineno)
        for path, tree in EVERYTHING.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def test_what_the_parent_imports_is_known():
    assert PARENT <= MODULES
    top = {module_of(path): {name for _, name in imports(tree, top_level=True) if name in MODULES} for path, tree in TRAINER.items()}
    reached, waiting = set(), ["trainer.main", "trainer.cli", "trainer.launch"]
    while waiting:
        if (module := waiting.pop()) not in reached:
            reached.add(module)
            waiting += top[module]
    assert reached <= PARENT


def test_the_parents_modules_import_nothing_heavy():
    found = [
        f"{at(path, line)} imports {name}"
        for path, tree in TRAINER.items()
        if module_of(path) in PARENT
        for line, name in imports(tree, top_level=True)
        if name.split(".")[0] in HEAVY
    ]
    assert found == []


def test_the_parent_starts_without_tensorflow(tmp_path):
    for name in ("tensorflow", "tf_keras", "tensorboard", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    code = (
        "import sys, trainer.launch, trainer.cli, trainer.worker\n"
        "from trainer import build\n"
        "build.strategy_of(trainer.cli.compose(['strategy=mirrored', 'strategy.virtual_devices=2']))\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'trainer'))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert {name for name in done.stdout.split() if name != "trainer.conf"} <= PARENT


def test_models_and_datasets_know_nothing_of_the_engine():
    for tree, own in ((MODELS, "trainer.models"), (DATASETS, "trainer.datasets")):
        found = [
            f"{at(path, line)} imports {name}"
            for path, parsed in tree.items()
            for line, name in imports(parsed)
            if name.split(".")[0] == "trainer" and not name.startswith(own)
        ]
        assert found == []


def test_the_engine_knows_no_model_and_no_dataset():
    found = [
        f"{at(path, line)} imports {name}"
        for path, tree in TRAINER.items()
        for line, name in imports(tree)
        if name.startswith(("trainer.models", "trainer.datasets", "models", "datasets"))
    ]
    assert found == []


def test_arrows_point_downward():
    found = []
    for path, tree in TRAINER.items():
        module = module_of(path)
        for line, name in imports(tree):
            if name.split(".")[0] != "trainer":
                continue
            same_package = name.rpartition(".")[0] == module.rpartition(".")[0] != "trainer"
            if layer(name) <= layer(module) and not same_package:
                found.append(f"{at(path, line)}: {module} imports {name}, which is not below it")
    assert found == []


def test_every_layer_exists():
    assert [name for names in LAYERS for name in names if name not in MODULES] == []


def test_nothing_but_a_strategy_asks_which_strategy_it_is():
    # "auto" is a value of other keys too.
    names = {path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml")} - {"auto"}
    found = []
    for path, tree in EVERYTHING.items():
        if "strategies" in path.parts:
            continue
        for node in ast.walk(tree):
            compared = isinstance(node, ast.Compare | ast.Match) and "strategy" in ast.unparse(node).split("\n")[0]
            literal = isinstance(node, ast.Compare) and any(
                isinstance(value, ast.Constant) and value.value in names for value in ast.walk(node)
            )
            kind = (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "isinstance"
                and ("Strategy" in ast.unparse(node.args[1]) or "strateg" in ast.unparse(node.args[0]))
            )
            if compared or literal or kind:
                found.append(f"{at(path, node.lineno)}: {ast.unparse(node)}")
    assert found == []


def test_the_environment_is_read_in_one_place():
    found = {
        (str(path.relative_to(ROOT)), ast.unparse(node))
        for path, tree in EVERYTHING.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv", "unsetenv")
    }
    # cli.py tells Hydra through HYDRA_FULL_ERROR, and no other way, to leave errors to us.
    assert found == {("trainer/cluster.py", "os.environ"), ("trainer/cli.py", "os.environ")}
    keys = {
        ast.unparse(node.slice if isinstance(node, ast.Subscript) else node.args[0])
        for node in ast.walk(TRAINER[ROOT / "trainer" / "cli.py"])
        if (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ")
        or (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("os.environ."))
    }
    assert keys == {"_FULL_ERROR"}


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    assert len(path.read_text().splitlines()) <= 400
    functions = [node for node in ast.walk(EVERYTHING[path]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f"{node.name}: {length}" for node in functions if (length := node.end_lineno - node.lineno + 1) > 60] == []


def test_one_module_alone_instantiates():
    found = {
        str(path.relative_to(ROOT))
        for path, tree in EVERYTHING.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.ImportFrom | ast.Import)
        and (
            "hydra.utils" in ast.unparse(node)
            or (isinstance(node, ast.Attribute) and node.attr in ("instantiate", "get_object", "get_class"))
        )
    }
    assert found == {"trainer/instantiation.py"}
