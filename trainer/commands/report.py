"""The command `report <run> ...`: what runs came to, as one HTML page that needs no network. No TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.commands.arguments import Parser, is_run, run_at, runs_in
from trainer.errors import ConfigError
from trainer.exitcodes import DONE
from trainer.files import write_atomically
from trainer.report import data, page
from trainer.sweep.summary import short

_FILE = "report.html"
_SUMMARY = "summary.json"


def run(arguments: Sequence[str]) -> int:
    """Writes the page about the runs that the arguments name, and says where it is.

    Raises:
        ConfigError: there is no such run, or no such place for the page.
        StorageError: the page cannot be written.
    """
    parser = Parser("report", "exit code: 0, whatever has become of the runs")
    parser.add_argument("runs", nargs="+", metavar="run", help="a run directory, a folder of them, or that of a sweep, runs/sweeps/<name>")
    parser.add_argument(
        "--output", default=_FILE, metavar="FILE", help=f"the page's file; {_FILE} in the current directory, unless another is named"
    )
    args = parser.parse_args(arguments)
    output = _output(args.output)
    found = {path.resolve(): (path, label) for given in args.runs for path, label in _expanded(given)}
    runs = [data.read(path, label) for path, label in found.values()]
    write_atomically(output, page.render(runs))
    print(f"{len(runs)} run{'s' if len(runs) != 1 else ''}: {output}")
    return DONE


def _output(given: str) -> Path:
    path = Path(given).expanduser()
    path = path / _FILE if path.is_dir() else path
    if not path.parent.is_dir():
        raise ConfigError(f"--output ({given}): no such directory: {path.parent}")
    return path


def _expanded(given: str) -> Iterator[tuple[Path, str]]:
    """Gives the runs that an argument stands for, each with its label."""
    path = Path(given).expanduser()
    if (path / _SUMMARY).is_file() and not is_run(path):
        found = list(_of_sweep(path))
    else:
        found = [(run, run.name) for run in ([] if is_run(path) else runs_in(path))] or [_alone(given)]
    if not found:
        raise ConfigError(f"report ({given}): none of the sweep's runs is there")
    return iter(found)


def _alone(given: str) -> tuple[Path, str]:
    path = run_at("report", given)
    return path, path.resolve().name


def _of_sweep(folder: Path) -> Iterator[tuple[Path, str]]:
    """Gives the runs of a sweep that are there, the best first; also where the folder of runs has been moved."""
    try:
        points = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))["points"]
        keys = list(dict.fromkeys(key for point in points for key in point["varied"]))
        names = dict(zip(keys, short(keys), strict=True))
        for point in points:
            places = (Path(point["run"]), folder.resolve().parent.parent / Path(point["run"]).name)
            told = " ".join(f"{names[key]}={value}" for key, value in point["varied"].items())
            if path := next((place for place in places if is_run(place)), None):
                yield path, f"{path.name} {told}".strip()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"report ({folder}): its {_SUMMARY} cannot be read: {error}") from error
