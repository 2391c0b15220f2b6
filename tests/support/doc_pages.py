"""Runs a Markdown page: writes its files, runs its commands, and compares what they print.

The blocks of a page are run in order, in one directory. The fence says what a block is:

    ```python title="models/mlp.py"      a file, of any language
    ```bash                              commands that must succeed
    ```console                           commands behind `$ `, and their output; `...` is any text

A comment in the line above, `<!-- not run: it needs a cluster -->`, marks commands that a test
cannot run: they must compose. Readers do not see it.

In a path, `<run>` stands for whatever exists; of several, the newest. The directory is like a
checkout: a page that adds code to it gets a copy, the others links to one copy that they share. For
the page of an example it is a copy of the example.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.printed_text import matches
from trainer.cli.command_table import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECS = 240
CHECKOUT = ("train.py", "trainer", "models", "datasets", "conf")

_FENCE = re.compile(
    r"^(?P<not_run> *<!-- not run: .+ -->\n)?"
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"\n]*)")?\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_PLACEHOLDER = re.compile(r"[\w./-]*<[\w ]+>[\w./-]*")
_PROGRAMS = ("python train.py", "steadfast")
_QUICK = ("--help", "--cfg")


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
        text: as written on the page.
        output: what it prints according to the page; None if the page shows nothing.
        is_run: whether a test can run it.
    """

    text: str
    output: str | None = None
    is_run: bool = True

    @property
    def arguments(self):
        """The program's arguments; empty if another program is called."""
        words = shlex.split(self.text, comments=True)
        program = next(
            (index for index, word in enumerate(words) if word in ("train.py", "steadfast")),
            len(words),
        )
        return words[program + 1 :]

    @property
    def is_refused(self):
        """Whether it ends with exit code 2, and not that of an `echo` behind it."""
        return "error:" in (self.output or "") and "; echo" not in self.text

    @property
    def trains(self):
        """Whether running it takes as long as a training does."""
        return (
            self.is_run
            and not self.is_refused
            and self.text.startswith(_PROGRAMS)
            and COMMANDS.keys().isdisjoint(self.arguments[:1])
            and not any(mark in self.text for mark in _QUICK)
        )


@dataclass(frozen=True)
class File:
    """A file of a page."""

    path: str
    text: str


class Page:
    """A page: its files and commands, in order."""

    def __init__(self, path):
        self.path = path
        self.steps = [step for match in _FENCE.finditer(path.read_text()) for step in _steps(match)]

    @property
    def commands(self):
        return [step for step in self.steps if isinstance(step, Command)]

    @property
    def trains(self):
        return any(command.trains for command in self.commands)

    @property
    def is_example(self):
        """Whether it belongs to an example project, which has its own directory."""
        return "examples" in self.path.parts

    @property
    def adds_code(self):
        """Whether it adds files to the folders of the checkout."""
        files = (step for step in self.steps if isinstance(step, File))
        return any(file.path.split("/")[0] in CHECKOUT for file in files)

    def directory(self, scratch, checkout):
        """Create the directory that the page starts from."""
        folder = scratch / "work"
        if self.is_example:
            shutil.copytree(self.path.parent, folder, ignore=shutil.ignore_patterns("runs"))
        elif self.adds_code:
            shutil.copytree(checkout, folder)
        else:
            folder.mkdir()
            for name in CHECKOUT:
                (folder / name).symlink_to(checkout / name)
        return folder

    def run(self, folder, checkout, variables):
        """Run the page.

        Raises:
            AssertionError: a command fails, or prints something else than the page shows.
        """
        environment = {**os.environ, **variables, "PATH": _programs(folder.parent, checkout)}
        for step in self.steps:
            if isinstance(step, File):
                write(step, folder)
            elif step.is_run:
                _run(step, folder, environment)


def copy_checkout(folder):
    """Copy what of the checkout the pages use into a folder, and return it."""
    for name in CHECKOUT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    return folder


def write(file, folder):
    """Write a page's file into a directory."""
    (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
    (folder / file.path).write_text(file.text)


def _steps(match):
    indent = len(match["indent"])
    title = match["title"]
    text = "".join(line[indent:] or "\n" for line in match["text"].splitlines(keepends=True))
    is_run = match["not_run"] is None
    if match["language"] == "bash":
        yield from (
            Command(line, is_run=is_run)
            for line in text.replace("\\\n", "").splitlines()
            if line and not line.startswith("#")
        )
    elif match["language"] == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield Command(line, output, is_run)
    elif title:
        yield File(title, text)


def _programs(scratch, checkout):
    """Return a PATH on which `python` and `steadfast` are this Python and a checkout."""
    folder = scratch / "bin"
    folder.mkdir()
    python = folder / "python"
    steadfast = folder / "steadfast"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    steadfast.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(checkout)!r})\n"
        "from trainer.main import main\n\nmain()\n"
    )
    for program in (python, steadfast):
        program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _run(command, folder, environment):
    text = _PLACEHOLDER.sub(lambda match: _newest(match[0], folder), command.text)
    process = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    report = f"$ {text}\n{process.stdout}exit code {process.returncode}"
    assert process.returncode == (2 if command.is_refused else 0), report
    if command.output is not None:
        expected = f"\n\nThe page shows\n{command.output}"
        assert matches(command.output, process.stdout), report + expected


def _newest(pattern, folder):
    """Return the newest path that matches placeholders; the folder `sweeps` is no run."""
    paths = [path for path in folder.glob(re.sub("<[^>]*>", "*", pattern)) if path.name != "sweeps"]
    assert paths, f"{pattern}: there is none"
    return str(max(paths, key=lambda path: path.stat().st_mtime).relative_to(folder))
