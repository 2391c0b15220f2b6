"""One process of the fuzzer: draws, compares and shrinks programs."""

import logging
import os
import warnings
from dataclasses import replace

from tests.differential.program import Report

EVERY = 20
"""A layout with processes is for one program in so many."""
LAYOUTS = (
    "mirrored", "shards", "accumulate", "mirrored_shards", "multi_worker", "killed", "again",
)  # fmt: skip


def prepare():
    """Have this process use tf_keras and four virtual devices, as the tests do."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.get_logger().setLevel(logging.ERROR)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, devices)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, os.cpu_count() or 1))


def run(seed, number, *, layouts=LAYOUTS, shrinks=True):
    """Compare a program, and make it smaller if it shows a defect."""
    from tests.differential.comparison import compare, layouts_of
    from tests.differential.grammar import draw
    from tests.differential.shrink import shrunk
    from tests.differential.source import script
    from tests.differential.steadfast_run import command

    program = draw(seed, number)
    outcome = compare(program, layouts_of(number, layouts, EVERY))
    if not outcome.is_defect:
        return Report(number, outcome)
    if shrinks:
        program, smaller = shrunk(program, outcome)
        outcome = replace(smaller, secs=outcome.secs)
    title = f"Program {number} of seed {seed}, {outcome.kind} on {outcome.layout}."
    text = script(program, title, command(program, outcome.layout))
    return Report(number, outcome, f"{text}\n{outcome.detail}\n{program}")
