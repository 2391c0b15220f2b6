"""Settings that every test shares."""

import importlib.util
import os
import sys
from collections import Counter
from importlib.abc import MetaPathFinder

import pytest

# Before anything imports TensorFlow: the tests use the same Keras as the workers.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class FourDevices(MetaPathFinder):
    """Give TensorFlow four virtual devices when a test first imports it.

    They are enough for every strategy in this process, and have to be there before the first
    operation. Tests of pure modules never import it, and start at once.
    """

    def find_spec(self, name, path, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(tf):
            execute(tf)
            cpu = tf.config.list_physical_devices("CPU")[0]
            devices = [tf.config.LogicalDeviceConfiguration()] * 4
            tf.config.set_logical_device_configuration(cpu, devices)
            # On one core too, a function can wait for another.
            tf.config.threading.set_inter_op_parallelism_threads(max(2, os.cpu_count() or 1))
            tf.config.list_logical_devices()  # from here on no test can change them
            _end_iterators_at_once(tf)

        spec.loader.exec_module = exec_module
        return spec


def _end_iterators_at_once(tf):
    """Tune no dataset: the end of an iterator may wait a minute for the thread that does."""
    iterate = tf.data.Dataset.__iter__

    def iterate_untuned(dataset):
        from trainer.engine.graph.library_patches import untuned

        return iterate(untuned(dataset))

    tf.data.Dataset.__iter__ = iterate_untuned


sys.meta_path.insert(0, FourDevices())


class AtOnce:
    """Print a failure when it happens: a run that is cut off never prints pytest's summary."""

    def __init__(self, config):
        self._terminal = config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report):
        if report.failed or report.outcome == "rerun":  # repeated by --reruns
            self._terminal.write_line(
                f"\n{report.nodeid} ({report.when}, {report.duration:.0f} s)\n"
                f"{report.longreprtext}",
                red=True,
            )


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if not hasattr(
        config, "workerinput"
    ):  # pytest-xdist's workers report to the process that prints
        config.pluginmanager.register(AtOnce(config))


def pytest_collection_finish(session):
    """Start a fork server for the commands that the tests run, if there are such tests."""
    if "tests.support.processes" in sys.modules:
        from tests.support.fork_server import start

        session.config.add_cleanup(start())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Put the files that take long first, so that two processes end at about the same time."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
