"""The messages of a worker, as they go over the socket."""

import json
import logging
import socket

from trainer.channel import Channel, Warnings, to_socket


def test_every_message_has_its_form(caplog):
    sent = []
    channel = Channel(sent.append)
    with caplog.at_level(logging.INFO, "trainer.channel"):
        channel.line("Number of devices: 1")
    channel.phase("compile", 3)
    channel.progress(4, 10, 12.5, None, {"loss": 0.5})
    channel.problem(["seed: wrong"])
    channel.crash("boom", "ValueError: boom")
    assert sent == [
        {"kind": "line", "text": "Number of devices: 1"},
        {"kind": "phase", "phase": "compile", "step": 3},
        {"kind": "progress", "step": 4, "total": 10, "rate": 12.5, "secs_left": None, "metrics": {"loss": 0.5}},
        {"kind": "problem", "lines": ["seed: wrong"]},
        {"kind": "crash", "text": "boom", "cause": "ValueError: boom"},
    ]
    assert caplog.messages == ["Number of devices: 1"]


def test_what_comes_often_is_thinned_but_a_change_never_is():
    sent, now = [], [0.0]
    channel = Channel(sent.append, lambda: now[0])
    for turn in range(21):  # two seconds
        now[0] = turn / 10
        channel.phase("train", turn)
        channel.progress(turn + 1, 99, 1.0, None, {})
    channel.phase("evaluate", 21)
    channel.beat()
    assert [message["step"] for message in sent if message["kind"] == "phase"] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert [message["step"] for message in sent if message["kind"] == "progress"] == [1, 4, 7, 10, 13, 16, 19]
    now[0] += 1
    channel.beat()
    assert sent[-1] == sent[-2] == {"kind": "phase", "phase": "evaluate", "step": 21}


def test_a_line_with_a_percent_sign_is_kept_as_it_is(caplog):
    with caplog.at_level(logging.INFO, "trainer.channel"):
        Channel(lambda message: None).line("100% of %s")
    assert caplog.messages == ["100% of %s"]


def test_messages_go_through_a_socket_one_line_each_at_once():
    ours, theirs = socket.socketpair()
    channel = Channel(to_socket(theirs))
    channel.line("two\nlines, ä")
    channel.phase("train", 7)
    with ours, theirs, ours.makefile(encoding="utf-8") as read:
        lines = [read.readline(), read.readline()]
    assert [json.loads(line) for line in lines] == [
        {"kind": "line", "text": "two\nlines, ä"},
        {"kind": "phase", "phase": "train", "step": 7},
    ]


def test_a_reader_that_is_gone_is_no_error(caplog):
    ours, theirs = socket.socketpair()
    send = to_socket(theirs)
    ours.close()
    send({"kind": "line", "text": "nobody listens"})
    assert "the supervisor is gone" in caplog.messages


def test_warnings_of_this_package_are_shown_but_not_those_about_sending():
    sent = []
    handler = Warnings(sent.append)
    for name in ("trainer.datasets.image_files", "trainer.channel"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.warning("skipped %s", "a.jpg")
        logger.info("no warning")
        logger.removeHandler(handler)
    assert sent == [{"kind": "line", "text": "warning: skipped a.jpg"}]
