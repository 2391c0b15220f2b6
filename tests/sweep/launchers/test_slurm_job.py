"""What Slurm is asked about the job of this process."""

import pytest

from trainer.sweep.launchers.slurm_job import is_requeued


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Slurm's program, which knows that job 7 will be started a second time."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show job 7" ] && echo " Requeue=1 Restarts=1 x=0"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_JOB_ID": "7"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, False),
        ({"SLURM_JOB_ID": "8"}, False),
        ({}, False),
    ],
)
def test_job_is_requeued_if_slurm_counts_more_restarts_than_it(scontrol, environment, expected):
    assert is_requeued(environment) is expected


def test_job_is_not_requeued_where_slurm_cannot_be_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_requeued({"SLURM_JOB_ID": "7"})
