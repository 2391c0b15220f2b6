"""Runs as objects."""

import json

from trainer import notebook
from trainer.cli.compose import compose
from trainer.notebook import Run, RunError
from trainer.runs import provenance
from trainer.runs.directory import open_run


def test_html_shows_state_metrics_and_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["model=softmax", "train.epochs=null", "train.steps=100"]
    run = open_run(compose(overrides), overrides, None)
    run.release()
    line = {"step": 30, "split": "test", "loss": 0.125}
    (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    record = provenance.read(run.path)
    (run.path / "run.json").write_text(json.dumps({**record, "overrides": ["name=a<b"]}))
    html = Run(run.path, 0)._repr_html_()
    assert html.startswith(f"<div><b>{run.path.name}</b>: ")
    assert "<div>loss 0.1250</div>" in html
    assert "<code>name=a&lt;b</code>" in html


def test_lines_are_printed_as_they_come_and_the_run_is_returned(tmp_path, monkeypatch, capsys):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys\nprint('first \\xe9', flush=True)\n"
        f"sys.stdout.write('Run directory: {tmp_path}\\nunended')\n"
    )
    monkeypatch.setattr(notebook, "_program", lambda: ["python", str(program)])
    assert notebook.run().directory == tmp_path
    assert capsys.readouterr().out == f"first \xe9\nRun directory: {tmp_path}\nunended\n"


def test_error_is_one_line_in_a_notebook():
    assert RunError("no such choice", 2)._render_traceback_() == ["RunError: no such choice"]
