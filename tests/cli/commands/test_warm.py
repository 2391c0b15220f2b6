"""The command `warm`: what commands have left for the next."""

import pytest

from tests.support.command_line import run_here
from trainer.cluster import warm_servers
from trainer.cluster.fork_protocol import Description


@pytest.fixture
def servers(monkeypatch):
    found = []
    monkeypatch.setattr(warm_servers, "describe", lambda: found)
    monkeypatch.setattr(warm_servers, "stop", lambda: found)
    return found


@pytest.mark.parametrize("arguments", [("warm",), ("warm", "stop")])
def test_warm_says_that_there_is_none(servers, arguments):
    outcome = run_here(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "No fork server is warm; launch.keep_warm_secs=<secs> leaves one.\n"


@pytest.mark.parametrize(
    ("server", "line"),
    [
        (Description(7, 0, 61.2), "Process 7: 0 processes; ends 1:01 from now"),
        (Description(7, 1, 600.0), "Process 7: 1 process; ends 10:00 after its last process"),
        (Description(7, 2, None), "Process 7: 2 processes; ends with its command"),
    ],
)
def test_warm_shows_workers_and_the_end(servers, server, line):
    servers.append(server)
    assert run_here("warm").out == f"{line}\n"


@pytest.mark.parametrize(
    ("number", "end"),
    [(0, "0 processes; has ended"), (2, "2 processes; ends with its last process")],
)
def test_warm_stop_says_what_ends(servers, number, end):
    servers.append(Description(7, number, 60.0))
    assert run_here("warm", "stop").out == f"Process 7: {end}\n"


def test_warm_refuses_other_actions(servers):
    outcome = run_here("warm", "stpo")
    assert (outcome.code, outcome.out) == (2, "")
    expected = "error: warm (stpo) must be stop, or nothing; did you mean 'stop'?\n"
    assert outcome.err == expected
