"""Memory of the process."""

import resource
import sys

import numpy as np
import pytest

from trainer.summaries import resource_usage


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_resource_metrics_have_the_resident_memory_in_mib():
    before = resource_usage.resource_metrics()["memory_mib"]
    array = np.ones(64 * 2**20, np.uint8)
    assert 48 < resource_usage.resource_metrics()["memory_mib"] - before < 128
    assert (
        resource_usage.resource_metrics()["memory_mib"]
        <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 + 1
    )
    del array
