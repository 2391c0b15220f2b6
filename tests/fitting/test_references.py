"""What is imported by its name, and what a script's definitions become."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from trainer import code_files
from trainer.errors import ConfigError
from trainer.fitting.references import function_node, importable, kept_definitions

SCRIPT = """
from __future__ import annotations
import json as js
import math
from math import pi

size = int(math.sqrt(16))
rows = object()
root = js.dumps
train(size)

def unused():
    return rows

class Base:
    width = size

@staticmethod
def area(rows=2):
    return pi * rows

class Net(Base):
    def call(self):
        return [root(self.width), area(), len("x")]

def make():
    return Net()
"""


def main_of(monkeypatch: pytest.MonkeyPatch, **members: Any) -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main).update(members)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


@pytest.mark.parametrize("is_notebook", [False, True])
def test_definitions_bring_what_they_use_and_nothing_else(
    is_notebook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    source = {"In": ["", "!magic", *SCRIPT.split("\n\n")]} if is_notebook else {}
    main = main_of(monkeypatch, __file__=str(script), **source)
    exec(SCRIPT.replace("train(size)", ""), vars(main))
    node = function_node(main.make, "model", tmp_path / "kept", "trainer.code_files.call")
    path = Path(node["code"])
    assert node == {"_target_": "trainer.code_files.call", "code": str(path), "function": "make"}
    text = path.read_text()
    assert text.startswith("from __future__ import annotations\n")
    assert "size = 4\n" in text
    assert "unused" not in text
    assert "rows = object" not in text
    net = code_files.call(code=str(path), function="make")
    assert net.call()[0] == "4"
    assert kept_definitions(["make"], tmp_path / "kept") == path
    with pytest.raises(ConfigError, match=r"^unused uses rows \(object\), which the script comp"):
        kept_definitions(["unused"], tmp_path / "kept")


def test_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^code \(.*gone.py\): no such file; start the command "):
        code_files.call(code=str(tmp_path / "gone.py"), function="make")


def test_what_has_no_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importable(importable, "data") == "trainer.fitting.references.importable"
    with pytest.raises(ConfigError, match=r"^data \(a lambda\) cannot be imported by the process"):
        importable(lambda: 1, "data")
    main = main_of(monkeypatch)
    exec("def make(): pass", vars(main))
    with pytest.raises(ConfigError, match=r"^what an interactive Python defines has no source; "):
        kept_definitions(["make"], Path("unused"))
