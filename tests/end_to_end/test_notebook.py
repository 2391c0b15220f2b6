"""The page on notebooks, cell by cell, and an interrupt, in a real kernel of IPython."""

import queue
import re
import time

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from tests.support.doc_pages import ROOT, copy_checkout
from tests.support.fork_server import fork_server_of
from tests.support.printed_text import matches
from trainer.errors import ConfigError
from trainer.notebook import RunError, run

PAGE = ROOT / "docs" / "how-to" / "notebook.md"
_CELL = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
_WAIT_SECS = 600


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout, in which a notebook can leave its runs, and its fork server."""
    folder = copy_checkout(tmp_path_factory.mktemp("checkout"))
    with fork_server_of(folder) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield folder


@pytest.mark.slow
def test_cells_of_the_page_print_what_it_shows(checkout):
    cells = _CELL.findall(PAGE.read_text())
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(code) for code, _ in cells]
    resources = {"metadata": {"path": str(checkout)}}
    NotebookClient(notebook, timeout=_WAIT_SECS, resources=resources).execute()
    assert len(cells) > 4
    for (code, expected), cell in zip(cells, notebook.cells, strict=True):
        printed = "".join(item["text"] for item in cell.outputs if item.get("name") == "stdout")
        assert not expected or matches(expected, printed), f"{code}\n{printed}"
    shown = [item["data"] for cell in notebook.cells for item in cell.outputs if "data" in item]
    assert any("image/png" in data for data in shown)


@pytest.fixture
def kernel(checkout):
    manager, client = start_new_kernel(startup_timeout=_WAIT_SECS, cwd=str(checkout))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def printed(client, message, end):
    """Return what the execution `message` has printed, up to the text `end`, or all of it."""
    text = ""
    deadline = time.monotonic() + _WAIT_SECS
    while time.monotonic() < deadline:
        try:
            item = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if item["parent_header"].get("msg_id") != message:
            continue
        content = item["content"]
        text += content.get("text", "") + "\n".join(content.get("traceback", []))
        if content.get("execution_state") == "idle" or (end and end in text):
            return text
    raise AssertionError(f"it takes too long; printed so far: {text}")


@pytest.mark.slow
def test_interrupt_saves_stops_and_the_same_cell_continues(kernel):
    manager, client = kernel
    client.execute("from trainer.notebook import run")
    command = 'run("name=cut", "model=softmax", "train.steps={}", "evaluate.every_steps=5"{})'
    cell = f"trained = {command.format(1_000_000, '')}\nprint(trained.status.state)"
    message = client.execute(f"{cell}\nprint(trained.exit_code, trained.step > 0)")
    begun = printed(client, message, " 10/1000000")
    assert "train" in begun
    manager.interrupt_kernel()
    text = printed(client, message, "")
    assert text.endswith("stopped\n130 True\n"), text
    longer = ', f"resume={trained.directory}"'
    code = f"more = {command.format('{trained.step + 5}', longer)}".replace('"train', 'f"train')
    message = client.execute(f"{code}\nprint(more.status.state, more.step - trained.step)")
    text = printed(client, message, "")
    assert "Continuing from the checkpoint of step" in text
    assert text.endswith("done 5\n"), text


def test_what_is_no_override_is_refused():
    with pytest.raises(ConfigError, match=r"^run\('-m'\) must be an override such as"):
        run("-m")


def test_wrong_configuration_raises_its_lines(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"^train.steps \(0\) must be ") as caught:
        run("train.steps=0")
    assert caught.value.exit_code == 2
    assert capfd.readouterr().out.startswith("error: train.steps (0)")
