"""Folders that last as long as the process of the tests, for what several tests share."""

import atexit
import shutil
import tempfile
from pathlib import Path


def new_folder():
    """Return a new, empty folder, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="steadfast-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
