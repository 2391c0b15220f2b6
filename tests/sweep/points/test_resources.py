"""Cores and GPUs are divided between the points that train in parallel."""

import pytest

from trainer.cluster import environment
from trainer.errors import ConfigError
from trainer.sweep.points.resources import ResourceShare, divide


def test_parallel_points_divide_cores_but_not_threads() -> None:
    assert divide(2, [0, 1, 4, 5], []) == [
        ResourceShare((0, 1), None, 4),
        ResourceShare((4, 5), None, 4),
    ]
    assert [share.cores for share in divide(3, [0, 1, 2, 3, 4], [])] == [(0,), (1, 2), (3, 4)]
    assert [share.cores for share in divide(5, [3, 7], [])] == [(3,), (7,), (3,), (7,), (3,)]
    assert divide(2, [], []) == [ResourceShare(), ResourceShare()]
    assert divide(1, [0, 1, 2], ["0"]) == [ResourceShare()]


def test_parallel_points_divide_gpus_and_do_not_share_one() -> None:
    gpus = [share.gpus for share in divide(2, [0, 1], ["0", "1", "GPU-ab"])]
    assert gpus == [("0",), ("1", "GPU-ab")]
    with pytest.raises(
        ConfigError, match=r"sweep.jobs \(2\) must be at most the number of GPUs \(1\)"
    ):
        divide(2, [0, 1], ["0"])


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, ["0", "1", "10"]),
        ("1, 0", ["1", "0"]),
        ("", []),
        ("GPU-ab,-1,1", ["GPU-ab"]),
    ],
)
def test_gpus_are_those_visible_to_this_process(
    visible: str | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        environment, "glob", lambda pattern: ["/dev/nvidia10", "/dev/nvidia0", "/dev/nvidia1"]
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment.visible_gpus() == gpus


def test_point_environment_has_threads_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    variables = environment.point_environment(4, ("1", "3"))
    assert {
        "TF_CONFIG": "{}",
        "TF_NUM_INTRAOP_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "1,3",
    }.items() <= variables.items()
    assert (
        not {"TF_NUM_INTRAOP_THREADS", "CUDA_VISIBLE_DEVICES"}
        & environment.point_environment(None, None).keys()
    )
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    assert environment.point_environment(4, None)["TF_NUM_INTRAOP_THREADS"] == "1"
