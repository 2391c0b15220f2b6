import resource
import sys

import numpy as np
import pytest

from trainer import memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_what_is_resident_now_is_told_in_mib():
    before = memory.figures()["memory_mib"]
    held = np.ones(64 * 2**20, np.uint8)
    assert 48 < memory.figures()["memory_mib"] - before < 128
    assert memory.figures()["memory_mib"] <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 + 1
    del held
