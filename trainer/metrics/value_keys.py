"""Names of values that a metric has for each class, target or label."""

from __future__ import annotations

import re
from collections.abc import Sequence


def value_keys(names: Sequence[str], count: int) -> list[str]:
    """Return names as a command line accepts them; numbers if two would be the same.

    Args:
        names: the names; may be empty.
        count: how many are needed.
    """
    keys = [re.sub(r"[^\w.-]+", "_", name) for name in names]
    return keys if len(set(keys)) == count else [str(number) for number in range(count)]
