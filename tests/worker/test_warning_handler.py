"""Warnings of a worker reach the user."""

import logging

from trainer.cluster.messages import Line
from trainer.worker.warning_handler import Warnings


def test_warnings_are_shown_but_not_those_about_sending():
    messages = []
    handler = Warnings(messages.append)
    for name in ("trainer.datasets.images.image_files", "trainer.cluster.messages"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.warning("skipped %s", "a.jpg")
        logger.info("no warning")
        logger.removeHandler(handler)
    assert messages == [Line("warning: skipped a.jpg")]
