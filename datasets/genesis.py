"""Genesis: the first book of the King James Bible, in `genesis.txt` beside this file.

1,533 verses, one a line, without their numbers, 197 kB. The translation of 1611 is in the public
domain; the text is that of Debian's package `bible-kjv-text`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from trainer.datasets import tokenization
from trainer.datasets.text_windows import WindowDataset, divided


def genesis(
    *,
    length: Annotated[int, ">= 1"] = 128,
    test_fraction: Annotated[float, "> 0, < 1"] = 0.1,
) -> WindowDataset:
    """An English text in the public domain; a token is a byte.

    Args:
        length: tokens of an example.
        test_fraction: the share at the end of the text that is tested on.
    """
    tokens = np.fromfile(Path(__file__).with_name("genesis.txt"), np.uint8)
    return divided(tokens, None, test_fraction, tokenization.load(tokenization.BYTES), length)
