"""What reaches other processes of a script's functions, and what names their files."""

import inspect
import os
import sys
import threading

import pytest
import tensorflow as tf

from tests.support.processes import ROOT, run_program
from trainer.errors import ConfigError
from trainer.fitting.carried import call, carried, function_node, load

SCRIPT = """
import math as maths
from pathlib import Path

import numpy as np

from trainer.fitting.carried import carried

try:
    import no_such_module
except ImportError:
    no_such_module = None

size = int(maths.sqrt(16))
table = np.arange(4) * size  # a comment
words = {"a", "b", "c", "d", "e"}

if size > 3:
    def area(rows=2):
        return rows * maths.floor(table.sum())

class Net:
    def call(self):
        return None

def call(self):
    return area(), len(words), [word in {"a", "x", "y"} for word in "ax"], no_such_module

Net.call = call
factor = lambda value: value * size

def make():
    return factor(1), Net().call()

if __name__ == "__main__":
    print(carried(make, "model", Path("kept")))
"""


def file_of(folder, text, seed="0"):
    """Return the name of the file that a script keeps its function in."""
    (folder / "script.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
    return run_program(sys.executable, "script.py", cwd=folder, env=environment).strip()


def test_functions_bring_what_they_use_and_are_named_by_it(tmp_path):
    name = file_of(tmp_path, SCRIPT)
    (tmp_path / "script.py").unlink()
    assert call(path=str(tmp_path / name)) == (4, (48, 5, [True, True], None))
    assert "factor(1), Net()" in inspect.getsource(load(tmp_path / name))  # for AutoGraph
    moved = SCRIPT.replace("# a comment", "").replace("class Net", "\n\n\nclass Net")
    assert file_of(tmp_path, moved, seed="1") == name
    assert file_of(tmp_path, SCRIPT.replace("return area()", "return -area()")) != name
    assert file_of(tmp_path, SCRIPT.replace("sqrt(16)", "sqrt(25)")) != name
    assert file_of(tmp_path, SCRIPT.replace('"x", "y"', '"x", "z"')) != name


def test_importable_functions_are_passed_by_their_names(tmp_path):
    assert function_node(file_of, "data", tmp_path, "call") == {"_target_": f"{__name__}.file_of"}
    node = function_node(lambda: 3, "data", tmp_path, "call")
    assert node["_target_"] == "trainer.fitting.carried.call"
    assert call(path=node["path"]) == 3


def test_what_cannot_be_pickled_is_named(tmp_path):
    lock = threading.Lock()
    settings = {"lock": lock}

    def make():
        return settings

    with pytest.raises(ConfigError, match=r"^model: lock of settings of make \(lock\) cannot be "):
        carried(make, "model", tmp_path / "kept")
    stream = tf.data.Dataset.range(3).shuffle(3).batch(2)
    with pytest.raises(ConfigError, match=r"^data: stream of <lambda>.*cannot be "):
        carried(lambda: stream, "data", tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_a_function_brings_a_dataset_that_gives_the_same_elements(tmp_path):
    numbers = tf.data.Dataset.range(5).map(lambda x: x * 2)
    path = carried(lambda: numbers.batch(2), "data", tmp_path)
    batches = list(load(path)().as_numpy_iterator())
    assert [batch.tolist() for batch in batches] == [[0, 2], [4, 6], [8]]
    drawing = numbers.map(lambda x: x + tf.random.uniform([], maxval=9, dtype=tf.int64))
    with pytest.raises(ConfigError, match="cannot be passed"):
        carried(lambda: drawing, "data", tmp_path)


def test_only_own_files_are_opened(tmp_path, monkeypatch):
    path = carried(lambda: 1, "data", tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ValueError, match=r"^path \(.*/link\) cannot be opened \(Too many levels "):
        load(tmp_path / "link")
    with pytest.raises(ValueError, match=r"^path \(.*gone\) cannot be opened \(No such file "):
        load(tmp_path / "gone")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"^path \(.*\) cannot be loaded \(.*Error: .*\); if "):
        load(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match=r"^path \(.*\) is of user \d+, and would run their code"):
        load(path)
