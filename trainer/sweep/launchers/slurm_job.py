"""What Slurm says of the job that this process belongs to."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

_SECS = 60


def is_requeued(environment: Mapping[str, str]) -> bool:
    """Return whether Slurm has decided to start this job again, after a preemption for example.

    It counts a restart when it decides on it, before it ends the processes of the job (seen with
    Slurm 22.05). What it does after a partition's GraceTime is not known before.

    Args:
        environment: the variables of this process, which tell the number of its own start.
    """
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return False
    try:
        text = subprocess.run(
            ["scontrol", "show", "job", job],
            capture_output=True,
            text=True,
            timeout=_SECS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    restarts = re.search(r"\bRestarts=([0-9]+)", text)
    own = int(environment.get("SLURM_RESTART_COUNT") or 0)
    return restarts is not None and int(restarts[1]) > own
