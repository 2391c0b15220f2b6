"""`python train.py ui [folder]`: says where the page is, and what is wrong in a line."""

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from tests.support.fake_runs import make_runs
from trainer.cli.commands import ui
from trainer.cli.page.page_server import PageServer


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """The runs that the server has when Ctrl-C ends it at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ui, "_PORTS", range(0, 1))  # any free one
    runs = []

    def interrupted(server):
        runs.extend(server.summaries.listing())
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupted)
    return runs


def test_command_says_where_the_page_is_until_it_is_interrupted(listed):
    first, _ = make_runs(Path("runs"), 2, 20)
    os.utime(first.path / "config.yaml", (0, 0))
    done = run_here("ui")
    assert (done.code, done.err) == (130, "")
    url, tunnel = done.out.splitlines()
    port = url.removeprefix("http://127.0.0.1:").partition("/?token=")[0]
    assert f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}" in tunnel
    assert listed == ["resnet-digits-00000001", "cnn-digits-00000000"]  # the newest first


def test_runs_that_links_lead_to_are_not_shown_unless_named(listed):
    (run,) = make_runs(Path("elsewhere"), 1, 20)
    Path("runs").mkdir()
    Path("runs/link").symlink_to(run.path.resolve())
    assert "runs has no run yet: the page shows the first one when it starts." in run_here("ui").out
    assert listed == []
    run_here("ui", "runs/link")
    assert listed == ["link"]


@pytest.fixture
def used():
    """A port in use."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        yield other.getsockname()[1]


def test_next_free_port_is_taken(listed, used, monkeypatch):
    monkeypatch.setattr(ui, "_PORTS", range(used, used + 20))
    assert f"127.0.0.1:{used}/" not in (out := run_here("ui").out)
    assert out.startswith("http://127.0.0.1:")
    monkeypatch.setattr(ui, "_PORTS", range(used, used + 1))
    assert run_here("ui").err.startswith(f"error: no port from {used} to {used} is free")
