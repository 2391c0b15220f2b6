"""The pictures of the pages show the words that the program prints today."""

import shutil
from importlib import import_module

import pytest

from docs.pictures.support import IMAGES, recorded_words
from trainer.runs.ledger import CATEGORIES

MOMENT = {*" ".join(CATEGORIES.values()).split()} | {
    *("join", "start", "compile", "train", "evaluate", "save", "quiet", "again", "completed")
}
"""Words that are shown or not, depending on the moment."""


@pytest.mark.long
@pytest.mark.parametrize("name", ["console", "promise", "live_page"])
def test_words_are_those_of_today(name):
    if name == "live_page":
        pytest.importorskip("playwright.sync_api")
        if not shutil.which("chromium") and not shutil.which("google-chrome"):
            pytest.skip("no Chromium is installed")
    for picture in import_module(f"docs.pictures.{name}").pictures():
        if (IMAGES / picture.name).exists():
            differ = picture.words() ^ recorded_words(picture.name)
            assert differ - MOMENT == set(), f"run python -m docs.pictures {name}"
