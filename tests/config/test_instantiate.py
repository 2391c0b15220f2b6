"""Whose code raised an error: a user's folder may be named like a library."""

import pytest

from trainer.config.instantiate import _from_a_library, instantiate


@pytest.mark.parametrize(("folder", "package"), [("keras", None), ("x", "numpy")])
def test_library_is_where_its_package_lies(folder, package, tmp_path):
    file = tmp_path / folder / "net.py"
    if package:
        file = pytest.importorskip(package).__path__[0] + "/net.py"
    with pytest.raises(ValueError, match="no") as error:
        exec(compile("raise ValueError('no')", str(file), "exec"), {})
    assert _from_a_library(error.value) == (package is not None)


def test_node_without_a_target_is_none():
    node = {"_target_": "builtins.dict", "x": {"_target_": None, "_partial_": True}, "y": 1}
    assert instantiate(node, "key") == {"x": None, "y": 1}
