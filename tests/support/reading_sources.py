"""Sources for processes that read records; no TensorFlow, so that these start at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class Told:
    """Records that tell who has read them: [index, process, whether TensorFlow is imported]."""

    def __init__(self, count: int = 32) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        features = np.array([index, os.getpid(), "tensorflow" in sys.modules])
        return features, 0.5 * index


class Pictures(Told):
    """Records whose features depend on the index alone, with a label."""

    def __getitem__(self, index: int) -> Any:
        random = np.random.default_rng(index)
        return {"image": random.integers(0, 256, (5, 4, 3)).astype(np.uint8), "label": index % 3}


class Broken(Told):
    """A record cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise RuntimeError("checksum of block 7 differs")
        return super().__getitem__(index)


class Deadly(Told):
    """A record ends the process that reads it."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class OnceDeadly(Told):
    """A record ends the first process that reads it; `folder` remembers that."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if index == 5 and not (mark := self.folder / "ended").exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Endless(Told):
    """Record 1 writes the number of its process to `path`, and takes an hour."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            partial = self.path.with_suffix(".partial")
            partial.write_text(str(os.getpid()))
            partial.rename(self.path)
            time.sleep(3600)
        return super().__getitem__(index)


class Absent(Told):
    """Can be copied, but not in another process."""

    def __reduce__(self) -> Any:
        return _absent, (os.getpid(),)


def _absent(process: int) -> Told:
    if os.getpid() != process:
        raise RuntimeError("the server is not here")
    return Absent()
