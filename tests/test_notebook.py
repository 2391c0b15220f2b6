"""Runs as objects."""

from trainer import notebook
from trainer.notebook import RunError


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
