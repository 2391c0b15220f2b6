"""Sentiment: 1,200 short English sentences, in `sentiment.csv` next to this file.

They are generated, not collected: a subject, one of 28 adjectives, which `not` or `never` turns
round in a quarter of the clauses, an opening and a closing, drawn at random. Half of them are
positive. They show how texts from a CSV file are classified, and are in the public domain (CC0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from trainer.annotations import Free, Ge, Gt, Lt
from trainer.datasets.text import TextDataset, text


def sentiment(
    *,
    length: Annotated[int, Ge(1)] = 112,
    test_fraction: Annotated[float, Gt(0), Lt(1)] = 0.2,
    cache_dir: Annotated[str | None, Free()] = None,
) -> TextDataset:
    """Generated sentences, positive or negative, as bytes."""
    file = Path(__file__).with_name("sentiment.csv")
    return text(path=str(file), length=length, test_fraction=test_fraction, cache_dir=cache_dir)
