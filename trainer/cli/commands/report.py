"""The command `report [run ...]`: writes one HTML page about runs. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import (
    DEFAULT_FOLDER,
    default_runs,
    listed_runs,
)
from trainer.cli.page.page_server import report_page
from trainer.cli.page.run_data import MOST_POINTS, Summaries, details, read_series
from trainer.config import addresses
from trainer.errors import DONE, ConfigError
from trainer.files import write_atomically
from trainer.store import remote_view
from trainer.sweep.search_data import searches_of

_FILE = "report.html"
_POINTS_OF_ALL, _FEWEST_POINTS = 30_000, 100
"""The runs of a page share so many points of a metric, so that many make no huge file."""


def run(arguments: Sequence[str]) -> int:
    """Write a page about the named runs and print its path; raise a StorageError if that fails."""
    parser = Parser("report", "exit code: 0, also if runs have failed")
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="run",
        help="a run directory, a folder of them, or that of a sweep, runs/sweeps/<name>; or the "
        f"address of a run or of a folder of runs in an object store; {DEFAULT_FOLDER}, unless "
        "another is named",
    )
    parser.add_argument(
        "--output",
        default=_FILE,
        metavar="FILE",
        help=f"the page's file; {_FILE} in the current directory, unless another is named",
    )
    args = parser.parse_args(arguments)
    output = _output(args.output)
    places = _places(args.runs)
    count = f"{len(places)} run{'s' if len(places) != 1 else ''}"
    title = places[0].rstrip("/").rpartition("/")[2] if len(places) == 1 else count
    sweeps = [Path(each).expanduser() for each in args.runs if not addresses.is_remote(each)]
    write_atomically(output, report_page(title, _data(places, sweeps)))
    print(f"{count}: {output}")
    return DONE


def _output(argument: str) -> Path:
    path = Path(argument).expanduser()
    path = path / _FILE if path.is_dir() else path
    if not path.parent.is_dir():
        raise ConfigError(f"--output ({argument}): no such directory: {path.parent}")
    return path


def _places(arguments: Sequence[str]) -> list[str]:
    """Return the directories and addresses of the runs; one that is named twice is shown once."""
    if not arguments:
        return list(map(str, default_runs("report")))
    places: dict[Path | str, str] = {}
    for argument in arguments:
        if addresses.is_remote(argument):
            for address in remote_view.runs_at("report", argument.rstrip("/")):
                places.setdefault(address, address)
            continue
        for path in listed_runs("report", argument):
            places.setdefault(path.resolve(), str(path))
    return list(places.values())


def _data(places: Sequence[str], sweeps: Sequence[Path]) -> dict[str, Any]:
    most = max(_FEWEST_POINTS, min(MOST_POINTS, _POINTS_OF_ALL // len(places)))
    folder = ", ".join(sorted({os.path.dirname(place) or "." for place in places}))
    with ExitStack() as stack:
        paths = {place: stack.enter_context(_directory(place)) for place in places}
        return {
            **Summaries(folder, lambda: paths, lambda: searches_of(sweeps)).payload(),
            "series": {place: read_series(path, most=most) for place, path in paths.items()},
            "details": {place: details(path, place) for place, path in paths.items()},
        }


@contextmanager
def _directory(place: str) -> Iterator[Path]:
    if addresses.is_remote(place):
        with remote_view.view("report", place) as path:
            yield path
    else:
        yield Path(place)
