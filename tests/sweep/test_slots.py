"""How cores and GPUs are divided between the points that train at a time."""

import os

import pytest

from trainer import cluster
from trainer.errors import ConfigError
from trainer.sweep import slots
from trainer.sweep.slots import Slot, divide


def test_one_point_at_a_time_has_everything() -> None:
    assert divide(1, [0, 1, 2], ["0"]) == [Slot()]


def test_cores_are_divided_and_operations_are_not() -> None:
    assert divide(2, [0, 1, 4, 5], []) == [Slot((0, 1), None, 4), Slot((4, 5), None, 4)]
    assert [slot.cores for slot in divide(3, [0, 1, 2, 3, 4], [])] == [(0,), (1, 2), (3, 4)]


def test_more_points_than_cores_share_them() -> None:
    assert [slot.cores for slot in divide(5, [3, 7], [])] == [(3,), (7,), (3,), (7,), (3,)]


def test_where_the_system_tells_no_cores_all_have_all() -> None:
    assert divide(2, [], []) == [Slot(), Slot()]


def test_gpus_are_divided() -> None:
    assert [slot.gpus for slot in divide(2, [0, 1], ["0", "1", "GPU-ab"])] == [("0",), ("1", "GPU-ab")]


def test_a_gpu_is_not_shared() -> None:
    with pytest.raises(ConfigError, match=r"sweep.jobs \(2\) must be at most the number of GPUs \(1\)"):
        divide(2, [0, 1], ["0"])


def test_only_the_cores_of_this_process_are_divided() -> None:
    assert slots.cores() == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("visible", "found"), [(None, ["0", "1", "10"]), ("1, 0", ["1", "0"]), ("", []), ("-1", []), ("GPU-ab,-1,1", ["GPU-ab"])]
)
def test_the_gpus_of_this_process(visible: str | None, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "glob", lambda pattern: ["/dev/nvidia10", "/dev/nvidia0", "/dev/nvidia1"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cluster.gpus() == found


def test_what_a_point_may_use_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment = cluster.point_environment(4, ("1", "3"))
    assert {"TF_CONFIG": "{}", "TF_NUM_INTRAOP_THREADS": "4", "CUDA_VISIBLE_DEVICES": "1,3"}.items() <= environment.items()
    assert not {"TF_NUM_INTRAOP_THREADS", "CUDA_VISIBLE_DEVICES"} & cluster.point_environment(None, None).keys()
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    assert cluster.point_environment(4, None)["TF_NUM_INTRAOP_THREADS"] == "1"
