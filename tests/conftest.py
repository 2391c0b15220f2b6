"""Settings that every test shares."""

import os
import sys
from collections import Counter
from collections.abc import Generator

import pytest

# Before anything imports TensorFlow: the tests use the same Keras as the workers.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

# Four virtual devices, before the first operation: enough for every strategy in this process.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
tf.config.list_logical_devices()  # from here on no test can change them


class AtOnce:
    """Print a failure when it happens: a run that is cut off never prints pytest's summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.outcome == "rerun":  # repeated by --reruns
            self._terminal.write_line(
                f"\n{report.nodeid} ({report.when}, {report.duration:.0f} s)\n"
                f"{report.longreprtext}",
                red=True,
            )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(
        config, "workerinput"
    ):  # pytest-xdist's workers report to the process that prints
        config.pluginmanager.register(AtOnce(config))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start a fork server for the commands that the tests run, if there are such tests."""
    if "tests.support.processes" in sys.modules:
        from tests.support.fork_server import start

        session.config.add_cleanup(start())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip what the limited kernels cannot do if ONEDNN_MAX_CPU_ISA hides some of the processor's.

    TensorFlow looks at the processor itself, and asks oneDNN for 16-bit kernels that are hidden.
    """
    try:
        return (yield)
    except tf.errors.AbortedError as error:
        limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
        if limit and "could not create a primitive descriptor" in str(error):
            pytest.skip(f"no such kernel with ONEDNN_MAX_CPU_ISA={limit}")
        raise


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take long first, so that two processes end at about the same time."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
