"""The command `report <run> ...`: writes one HTML page about runs. No TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.cli.commands.command_arguments import Parser, is_run, run_at, runs_in
from trainer.cli.report import page, run_data
from trainer.cli.report.run_data import Run
from trainer.config import addresses
from trainer.errors import DONE, ConfigError
from trainer.files import write_atomically
from trainer.store import remote_view
from trainer.text import short_keys

_FILE = "report.html"
_SUMMARY = "summary.json"


def run(arguments: Sequence[str]) -> int:
    """Write the page about the runs that the arguments name, and print its path.

    Raises:
        ConfigError: there is no such run, or no such directory for the page.
        StorageError: the page cannot be written.
    """
    parser = Parser("report", "exit code: 0, also if runs have failed")
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="run",
        help="a run directory, a folder of them, or that of a sweep, runs/sweeps/<name>; or the "
        "address of a run or of a folder of runs in an object store",
    )
    parser.add_argument(
        "--output",
        default=_FILE,
        metavar="FILE",
        help=f"the page's file; {_FILE} in the current directory, unless another is named",
    )
    args = parser.parse_args(arguments)
    output = _output(args.output)
    runs = list(_read(args.runs))
    write_atomically(output, page.render(runs))
    print(f"{len(runs)} run{'s' if len(runs) != 1 else ''}: {output}")
    return DONE


def _output(argument: str) -> Path:
    path = Path(argument).expanduser()
    path = path / _FILE if path.is_dir() else path
    if not path.parent.is_dir():
        raise ConfigError(f"--output ({argument}): no such directory: {path.parent}")
    return path


def _read(arguments: Sequence[str]) -> Iterator[Run]:
    """Yield the runs that arguments stand for; one that is named twice is shown once."""
    seen: set[Path | str] = set()
    for argument in arguments:
        if addresses.is_remote(argument):
            for address in remote_view.runs_at("report", argument.rstrip("/")):
                if address not in seen:
                    seen.add(address)
                    with remote_view.view("report", address) as view:
                        yield run_data.read(view.path, view.path.name, address)
            continue
        for path, label in _expanded(argument):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield run_data.read(path, label)


def _expanded(argument: str) -> list[tuple[Path, str]]:
    """Return the runs that an argument stands for, each with its label."""
    path = Path(argument).expanduser()
    if not is_run(path):
        if (path / _SUMMARY).is_file():
            runs = list(_of_sweep(path))
            if not runs:
                raise ConfigError(f"report ({argument}): none of the sweep's runs is there")
            return runs
        if folder_runs := runs_in(path):
            return [(run, run.name) for run in folder_runs]
    path = run_at("report", argument)
    return [(path, path.resolve().name)]


def _of_sweep(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the runs of a sweep that exist, the best first, even if their folder was moved."""
    try:
        points = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))["points"]
        keys = list(dict.fromkeys(key for point in points for key in point["varied"]))
        names = dict(zip(keys, short_keys(keys), strict=True))
        for point in points:
            recorded = Path(point["run"])
            paths = (recorded, folder.resolve().parent.parent / recorded.name)
            values = " ".join(f"{names[key]}={value}" for key, value in point["varied"].items())
            if path := next((path for path in paths if is_run(path)), None):
                yield path, f"{path.name} {values}".strip()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"report ({folder}): its {_SUMMARY} cannot be read: {error}") from error
