"""The table "to change, open" of CONTRIBUTING.md: each row is checked by making its change.

What can be a user's own is made in `docs/examples/own_project`. The other changes are made together
in a copy of the repository, each in the places of its row alone.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.end_to_end.test_own_project import PARTS, PROCESSES
from tests.support.command_line import ROOT

TABLE = (ROOT / "CONTRIBUTING.md").read_text().split("| to change | open |")[1].split("\n\n")[0]
ROWS = {
    label: re.findall(r"`([\w./]+/[\w./]*)`", places)
    for label, places in re.findall(r"^\| (.+?) \| (.+) \|$", TABLE, re.MULTILINE)
    if label != "---"
}


@dataclass(frozen=True)
class Change:
    """The arguments of a command that shows a change, and a part of its output or its files."""

    command: str
    shows: str
    new: dict[str, str] = field(default_factory=dict)
    edits: dict[str, tuple[str, str]] = field(default_factory=dict)
    code: int = 0


STORE = 'class MemStore:\n    requires = ("json", "json")\n'
SCHEDULER = """
from trainer.errors import ConfigError
starts_jobs_again = warning = lambda environment: None
def allocation(environment, count):
    if "LSB_JOBID" in environment:
        raise ConfigError("LSF has started it")
"""
RULE = """
def check(experiment):
    if experiment.seed == 8 and experiment.jit:
        yield "seed (8) must not be used with jit"
"""
HELLO = "def run(arguments):\n    print('hello')\n    return 0\n"
MODULE = "trainer.launch.modes.count"
RULES = "    values,\n)\nfrom trainer.config.schema import Experiment\n\nRULES = ("
CHANGES = {
    "an object store": Change(
        "slurm model=softmax runs_dir=mem://bucket/runs", " runs_dir=mem://bucket/runs\n",
        {"trainer/store/schemes/mem.py": STORE},
    ),
    "a scheduler such as LSF": Change(
        "strategy=multi_worker seed=9", "error: LSF has started it\n",
        {"trainer/cluster/schedulers/lsf_scheduler.py": SCHEDULER}, code=2,
    ),
    "GPU utilization as a metric": Change(
        "model=softmax train.steps=1 launch=inline summary.every_steps=1", '"gpu": 0.5',
        edits={"trainer/summaries/resource_usage.py": ("metrics = {}", 'metrics = {"gpu": 0.5}')},
    ),
    "a new subcommand": Change(
        "hello", "hello\n", {"trainer/cli/commands/hello.py": HELLO},
        {"trainer/cli/command_table.py": ("COMMANDS = {", 'COMMANDS = {"hello": ("", "hi"),')},
    ),
    "what an option accepts, or its effect on a continued run": Change(
        "seed=100", "error: seed (100) must be >= 0 and <= 99\n", code=2,
        edits={"trainer/config/schema.py": ("Le(9007199254740991)", "Le(99)")},
    ),
    "a rule across keys": Change(
        "seed=8 jit=true", "error: seed (8) must not be used with jit\n", code=2,
        new={"trainer/config/rules/seeds.py": RULE},
        edits={"trainer/config/rules/__init__.py": (RULES, f"    seeds,{RULES}seeds.check, ")},
    ),
    "a mode": Change(
        "mode=count", "hello\n", {"trainer/launch/modes/count.py": HELLO},
        {
            "trainer/config/schema.py": ('MODES = ("train", ', 'MODES = ("train", "count", '),
            "trainer/dispatch.py": ("_MODES = {", f'_MODES = {{"count": {MODULE!r},'),
        },
    ),
    "a part of the page and the report": Change(
        "report run", '"new":"a part"',
        edits={
            "trainer/cli/page/run_details.py": (
                '"crash": texts', '"new": "a part", "crash": texts'
            )
        },
    ),
}  # fmt: skip
ELSEWHERE = {
    "the line that refuses a command": "wrong_command_line_is_reported_in_one_line",
    "the default of an option, or the path of a `_target_`": "new_default_is_another_run_and_the_"
    "former_one_the_same",
}
"""Rows whose change another test makes, and its name."""


def test_guide_has_about_twenty_rows_and_a_check_for_each():
    assert 15 <= len(ROWS) <= 28
    options = [option for words in (*PARTS.values(), *PROCESSES.values()) for option in words]
    own = [*PARTS, *PROCESSES, *(option.partition("=")[0] for option in options), "search"]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for label, places in ROWS.items():
        assert places, label
        words = set(re.findall(r"\w+", label))
        if label not in CHANGES and not any(set(part.split()) <= words for part in own):
            assert label in ELSEWHERE, f"make the change of this row in CHANGES: {label}"
            assert f"def test_{ELSEWHERE[label]}(" in tests, label


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Return a copy of the repository in which every change is made."""
    copy = tmp_path_factory.mktemp("changed")
    for name in ("trainer", "conf", "datasets", "models"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "train.py", copy)
    for change in CHANGES.values():
        for path, text in change.new.items():
            (copy / path).write_text(text)
        for path, (old, new) in change.edits.items():
            text = (copy / path).read_text()
            assert old in text, path
            (copy / path).write_text(text.replace(old, new, 1))
    (copy / "run").mkdir()
    (copy / "run" / "config.yaml").write_text("{}\n")
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("label", CHANGES)
def test_change_in_the_places_of_its_row_is_seen(label, changed, monkeypatch):
    change = CHANGES[label]
    places = tuple(ROWS[label])
    assert all(path.startswith(places) for path in (*change.new, *change.edits))
    if "LSF" in label:
        monkeypatch.setenv("LSB_JOBID", "1")
    command = [sys.executable, "train.py", *change.command.split()]
    done = subprocess.run(
        command, cwd=changed, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == change.code, done.stdout + done.stderr
    files = [*changed.glob("*.html"), *changed.glob("runs/*/metrics.jsonl")]
    assert change.shows in done.stdout + done.stderr + "".join(map(Path.read_text, files))
