"""Which commands of a run print its progress."""

import pytest

from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Launch
from trainer.launch.display.visibility import is_quiet


@pytest.mark.parametrize(
    ("source", "index", "console", "quiet"),
    [
        ("Slurm", 1, "chief", True),
        ("Kubernetes", 1, "chief", True),
        ("Slurm", 0, "chief", False),
        ("Slurm", 1, "all", False),
        ("TF_CONFIG", 1, "chief", False),
        ("local", 1, "chief", False),
    ],
)
def test_scheduled_processes_beside_the_chief_are_quiet(source, index, console, quiet):
    cluster = Cluster(ProcessId("worker", index), {}, source)
    assert is_quiet(cluster, Launch(console=console)) is quiet
