"""Packages that only some datasets need, and the one line that names a missing one."""

import pytest

from trainer.datasets.splits.extras import import_extra


def test_import_extra_names_what_needs_the_missing_package() -> None:
    with pytest.raises(ValueError, match=r"^dataset=tfds needs the package.*'steadfast\[tfds\]'$"):
        import_extra("no_such_package.part", "tfds", "dataset=tfds")
