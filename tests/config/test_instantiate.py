"""Whose code raised an error: a user's folder may be named like a library."""

import pytest

from trainer.config.instantiate import _from_a_library


@pytest.mark.parametrize(("folder", "package"), [("keras", None), ("x", "numpy")])
def test_library_is_where_its_package_lies(folder, package, tmp_path):
    file = tmp_path / folder / "net.py"
    if package:
        file = pytest.importorskip(package).__path__[0] + "/net.py"
    with pytest.raises(ValueError, match="no") as error:
        exec(compile("raise ValueError('no')", str(file), "exec"), {})
    assert _from_a_library(error.value) == (package is not None)
