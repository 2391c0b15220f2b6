"""Runs as HTML, and the view of one that trains."""

import json
import os
import re
from pathlib import Path

import pytest

from trainer import notebook
from trainer.cli.compose import compose
from trainer.notebook import Run, RunError
from trainer.notebook_view import LiveView, run_html
from trainer.runs import provenance
from trainer.runs.directory import open_run


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The directory of a run of 100 steps."""
    monkeypatch.chdir(tmp_path)
    overrides = ["model=softmax", "train.epochs=null", "train.steps=100"]
    run = open_run(compose(overrides), overrides, None)
    metrics = {"direction": {"loss": "min", "accuracy": "max"}, "primary": "accuracy"}
    provenance.complete(run.path, ["CPU:0"], 1, 100, metrics=metrics)
    run.release()
    return run.path


def write(path, *lines):
    with (path / "metrics.jsonl").open("a") as file:
        for step, split, loss in lines:
            file.write(json.dumps({"step": step, "split": split, "loss": loss}) + "\n")


def num_points(html, color):
    return [
        len(points.split())
        for points in re.findall(rf"points='([^']*)' fill='none' stroke='{color}'", html)
    ]


def test_html_shows_state_metrics_curves_and_overrides(path):
    write(path, (10, "train", 0.5), (20, "train", float("nan")), (30, "train", 0.25))
    write(path, (30, "test", 0.125))
    record = provenance.read(path)
    (path / "run.json").write_text(json.dumps({**record, "overrides": ["name=a<b", "mode=train"]}))
    html = Run(path, 0)._repr_html_()
    text = " ".join(re.sub(r"<[^>]*>", " ", html).split())
    assert text == (
        f"{path.name} &nbsp; waiting, step 0 of 100 test loss 0.1250 "
        "loss train test 0.5000 0.1250 step 100 Overrides: name=a&lt;b"
    )
    assert num_points(html, "#4c78a8") == [2]
    assert "nan" not in html


def test_cell_that_has_shown_a_run_live_does_not_show_it_again(path, monkeypatch):
    monkeypatch.setattr(notebook, "_cell", lambda: 3)
    assert Run(path, 0, shown_in=3)._repr_html_() is None
    assert Run(path, 0, shown_in=2)._repr_html_()


def test_long_curve_is_thinned_and_keeps_its_last_point(path):
    write(path, *((step, "train", float(step)) for step in range(10_000)))
    html = run_html(path)
    assert num_points(html, "#4c78a8")[0] <= 401
    assert "312.0,24.0" in html


def test_live_view_is_drawn_at_most_each_second(path):
    shown = []
    now = [0.0]
    view = LiveView(shown.append, lambda: now[0])
    view.draw()
    view.read("epoch 1/2  step 12  train 2.2503")
    view.draw()
    assert not shown
    view.read(f"softmax (650 parameters) on digits, 1 CPU -> {os.path.relpath(path)}")
    view.read("a line of the user's own: inputs -> outputs")
    write(path, (10, "train", 0.5), (20, "train", 0.25))
    view.draw()
    assert num_points(shown[-1], "#4c78a8") == [2]
    write(path, (30, "train", 0.25))
    view.draw()
    assert len(shown) == 1
    now[0] = 1.0
    view.draw()
    assert num_points(shown[-1], "#4c78a8") == [3]
    write(path, (40, "train", 0.25))
    view.draw(at_once=True)
    assert num_points(shown[-1], "#4c78a8") == [4]


def test_lines_are_printed_as_they_come_and_the_run_is_returned(
    path, tmp_path, monkeypatch, capsys
):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys\nprint('first \\xe9', flush=True)\n"
        f"sys.stdout.write('Run directory: {path}\\nunended')\n"
    )
    monkeypatch.setattr(notebook, "_program", lambda: ["python", str(program)])
    assert notebook.run().directory == Path(path)
    assert capsys.readouterr().out == f"first \xe9\nRun directory: {path}\nunended\n"


def test_error_is_one_line_in_a_notebook():
    assert RunError("no such choice", 2)._render_traceback_() == ["RunError: no such choice"]
