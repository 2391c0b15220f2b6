"""The share of the devices' peak that a step uses."""

import tensorflow as tf

from trainer.engine import utilization
from trainer.engine.utilization import Utilization


def test_step_that_is_faster_than_the_measured_peak_raises_it(monkeypatch):
    monkeypatch.setattr(utilization, "measured_peak", lambda *_: 100.0)
    monkeypatch.setattr(utilization, "count_flops", lambda _: 10.0)
    measured = Utilization(["CPU:0"], tf.float32)
    assert measured.scalars(5.0) == {}
    measured.traced(tf.Graph())
    shares = [measured.scalars(steps_per_sec)["mfu"] for steps_per_sec in (5.0, 20.0, 5.0)]
    assert shares == [0.5, 1.0, 0.25]
