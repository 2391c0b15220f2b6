"""Time by kind of kernel, from a recording of TensorFlow's profiler."""

import pytest
import tensorflow as tf

from trainer.summaries.kernel_times import _own_times, kernel_times, kind_of

NAMES = {
    "while/body/_1/while/matmul:MatMul": "MatMul",
    "model/conv:_FusedConv2D": "FusedConv2D",
    "matmul:_MklMatMul": "MatMul",
    "StatefulPartitionedCall/PyFunc:EagerPyFunc": "EagerPyFunc",
    "KernelAndDeviceFunc::Run": None,
    "ExecutorState::Process": None,
    "EagerLocalExecute: __inference_f_60": None,
    "EagerLocalExecute:f": None,
    "Iterator::Root::Prefetch": None,
    "step": None,
}


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_kind_is_the_type_of_an_operation(name, kind):
    assert kind_of(name) == kind


class Event:
    def __init__(self, number, offset, duration):
        self.metadata_id = number
        self.offset_ps = offset
        self.duration_ps = duration


def test_operation_that_contains_others_has_what_is_left():
    names = {1: "call:PartitionedCall", 2: "a:MatMul", 3: "b:Relu", 4: "ExecutorState::Process"}
    events = [Event(4, 0, 200), Event(3, 60, 20), Event(1, 10, 100), Event(2, 20, 30),
              Event(2, 110, 5)]  # fmt: skip
    totals = {}
    for kind, own in _own_times(events, names):
        totals[kind] = totals.get(kind, 0) + own
    assert totals == {"PartitionedCall": 50, "MatMul": 35, "Relu": 20}


def test_recording_of_a_step_has_its_kernels(tmp_path):
    @tf.function
    def step(x):
        return tf.nn.relu(x @ x)

    x = tf.random.stateless_normal([64, 64], [0, 0])
    step(x)
    tf.profiler.experimental.start(str(tmp_path))
    for _ in range(3):
        step(x).numpy()
    tf.profiler.experimental.stop()
    times = kernel_times(tmp_path)
    assert any("MatMul" in name for name in times), times
    assert list(times.values()) == sorted(times.values(), reverse=True)


def test_missing_recording_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no recording in"):
        kernel_times(tmp_path)
