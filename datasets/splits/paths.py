"""Files that a path names, what identifies them, and files that are whole or absent."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def find_files(path: str | None, suffixes: tuple[str, ...], key: str = "path") -> list[Path]:
    """Return the files that a path names, sorted by name.

    Args:
        path: a file, a pattern with `*`, or a folder, whose files with these suffixes are meant.
            A suffix may be followed by `-00000-of-00004`.
        suffixes: with their dot.
        key: the option, for messages.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the path is None.
    """
    listed = " or ".join(suffixes)
    if path is None:
        raise ValueError(
            f"{key} (null) must name a file, a folder of {listed} files, or a pattern with *"
        )
    root = Path(path).expanduser()
    if root.is_file():
        return [root]
    if root.is_dir():
        files = [
            file
            for file in sorted(root.iterdir())
            if any(f"{suffix}-" in f"{file.name}-" for suffix in suffixes) and file.is_file()
        ]
        problem = f"no {listed} file in it"
    else:
        folder = next(parent for parent in root.parents if "*" not in str(parent))
        files = sorted(
            file for file in folder.glob(str(root.relative_to(folder))) if file.is_file()
        )
        problem = "no such file"
    if not files:
        raise FileNotFoundError(f"{key} ({root}): {problem}")
    return files


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Return the folders to train on and to test on; None: there is none.

    They are `train/`, and the first there is of `test/`, `val/` and `validation/`.

    Args:
        root: a folder; without `train/` in it, it is that to train on itself.

    Raises:
        ValueError: there is one to test on, but none to train on.
    """
    names = ("test", "val", "validation")
    held_out = next((root / name for name in names if (root / name).is_dir()), None)
    if (root / "train").is_dir():
        return root / "train", held_out
    if held_out is not None:
        raise ValueError(f"path ({root}) has {held_out.name}/ but no train/")
    return root, None


def files_identity(paths: Iterable[Path]) -> str:
    """Return a text that changes with files: with their names, sizes or times of modification.

    Args:
        paths: files, and folders with all that is in them.
    """
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            status = file.stat()
            text = f"{file.absolute()}\0{status.st_size} {status.st_mtime_ns}\n"
            digest.update(text.encode(errors="surrogateescape"))
    return digest.hexdigest()


@contextmanager
def replacing(file: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `file` when it is complete.

    Several threads and processes may do so at once: the last one stays.

    Raises:
        OSError: its folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(".tmp", f".{file.stem}-", file.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
        os.chmod(partial, 0o644)
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
