"""Tries what a page of Markdown shows: its files are written, its commands run, and what they print is compared.

A page is one story: its blocks are gone through in order, in one directory. What a block is, its fence says:

    ```python title="models/mlp.py"      a file, of any language
    ```bash                              commands that must succeed
    ```console                           commands behind `$ `, and what they print; `...` stands for anything or nothing
    ```bash title="Not run here: ..."    commands that need what a test has not: they must compose

In a path, `<run>` stands for whatever is there; of several, the newest. The directory is a copy of the checkout; for the page of an
example, of the example.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECS = 240
CHECKOUT = ("train.py", "trainer", "models", "datasets", "conf")
NOT_RUN = "Not run here"

_FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"\n]*)")?\n(?P<text>.*?)^(?P=indent)```$', re.MULTILINE | re.DOTALL
)
_PLACEHOLDER = re.compile(r"[\w./-]*<[\w ]+>[\w./-]*")
_PROGRAMS = ("python train.py", "steadfast")
_QUICK = ("--help", "--cfg", "strategy.hosts=", "error:")


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
        text: as it is shown.
        output: what it prints according to the page; None: the page does not say.
        is_run: whether a test can run it.
    """

    text: str
    output: str | None = None
    is_run: bool = True

    @property
    def arguments(self) -> list[str]:
        """What is handed to the program; empty if another one is called."""
        words = shlex.split(self.text, comments=True)
        program = next((place for place, word in enumerate(words) if word in ("train.py", "steadfast")), len(words))
        return words[program + 1 :]

    @property
    def trains(self) -> bool:
        """Whether running it takes as long as a training does."""
        told = f"{self.text} {self.output}"
        return (
            self.is_run
            and self.text.startswith(_PROGRAMS)
            and COMMANDS.keys().isdisjoint(self.arguments[:1])
            and not any(mark in told for mark in _QUICK)
        )


@dataclass(frozen=True)
class File:
    """A file of a page."""

    path: str
    text: str


class Page:
    """A page: its files and commands, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = [step for match in _FENCE.finditer(path.read_text()) for step in _steps(match)]

    @property
    def commands(self) -> list[Command]:
        return [step for step in self.steps if isinstance(step, Command)]

    @property
    def trains(self) -> bool:
        return any(command.trains for command in self.commands)

    def directory(self, scratch: Path) -> Path:
        """Makes the directory that the page starts from."""
        place = scratch / "work"
        if "examples" in self.path.parts:
            shutil.copytree(self.path.parent, place)
            return place
        place.mkdir()
        for name in CHECKOUT:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, place / name)
        return place

    def try_out(self, scratch: Path) -> None:
        """Goes through the page; what is not as it says is an AssertionError."""
        place, path = self.directory(scratch), _programs(scratch)
        for step in self.steps:
            if isinstance(step, File):
                write(step, place)
            elif step.is_run:
                _run(step, place, path)


def write(file: File, place: Path) -> None:
    """Writes a page's file into a directory."""
    (place / file.path).parent.mkdir(parents=True, exist_ok=True)
    (place / file.path).write_text(file.text)


def _steps(match: re.Match[str]) -> Iterator[File | Command]:
    indent, title = len(match["indent"]), match["title"]
    text = "".join(line[indent:] or "\n" for line in match["text"].splitlines(keepends=True))
    is_run = not (title or "").startswith(NOT_RUN)
    if match["language"] == "bash":
        yield from (Command(line, is_run=is_run) for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#"))
    elif match["language"] == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield Command(line, output, is_run)
    elif title:
        yield File(title, text)


def _programs(scratch: Path) -> str:
    """Gives a PATH on which `python` and `steadfast` are this Python and this checkout."""
    folder = scratch / "bin"
    folder.mkdir()
    python, steadfast = folder / "python", folder / "steadfast"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    steadfast.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom trainer.main import main\n\nmain()\n")
    for program in (python, steadfast):
        program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _run(command: Command, place: Path, path: str) -> None:
    text = _PLACEHOLDER.sub(lambda match: _found(match[0], place), command.text)
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=place,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    told = f"$ {text}\n{done.stdout}exit code {done.returncode}"
    assert done.returncode == (2 if "error:" in (command.output or "") else 0), told
    if command.output is not None:
        assert _matches(command.output, done.stdout), f"{told}\n\nThe page shows\n{command.output}"


def _matches(shown: str, printed: str) -> bool:
    """Says whether a command printed what is shown; `...` stands for anything, a line of it for any number of lines."""
    lines = [r"(.*\n)?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n" for line in shown.strip().splitlines()]
    return re.fullmatch("".join(lines), f"{printed.rstrip()}\n", re.DOTALL) is not None


def _found(pattern: str, place: Path) -> str:
    """Gives what a path with placeholders stands for; the summaries of sweeps lie beside the runs."""
    found = [path for path in place.glob(re.sub("<[^>]*>", "*", pattern)) if path.name != "sweeps"]
    assert found, f"{pattern}: there is none"
    return str(max(found, key=lambda path: path.stat().st_mtime).relative_to(place))
