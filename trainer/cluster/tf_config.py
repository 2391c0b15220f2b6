"""Validation of TF_CONFIG: with a wrong one TensorFlow waits for ever, or trains alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.annotations import OneOf
from trainer.cluster.spec import ACTOR, BESIDE, EVALUATOR
from trainer.config.options import constraints

JOBS = ("chief", "worker", "ps", EVALUATOR, ACTOR)

# The keys that TensorFlow reads, and "job", which Google Cloud adds.
_KEYS = ("cluster", "task", "environment", "rpc_layer", "session_master", "job")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]+)")
_EXAMPLE = '{"worker": ["a:2222", "b:2222"]}'
_TASK_EXAMPLE = '{"type": "worker", "index": 0}'


def problems(content: Any) -> Iterator[str]:
    """Yield what is wrong, one line for each problem; consequences of another are left out.

    Args:
        content: the parsed JSON.
    """
    if not isinstance(content, dict):
        yield f'{json.dumps(content)} must be an object with "cluster" and "task"'
        return
    for key in content:
        if key not in _KEYS:
            hint = constraints.did_you_mean(key, _KEYS) or "; it has cluster and task"
            yield f"unknown key '{key}'{hint}"
    jobs = content.get("cluster")
    if not isinstance(jobs, dict) or not jobs:
        value = _format(content, "cluster")
        yield f'"cluster" ({value}) must map jobs to their addresses, such as {_EXAMPLE}'
        return
    yield from list(_job_problems(jobs)) or _task_problems(content, jobs)


def _job_problems(jobs: Mapping[str, Any]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for job, addresses in jobs.items():
        if problem := _name_problem("job", job):
            yield problem
        elif not isinstance(addresses, list):
            value = json.dumps(addresses)
            yield f'job {job} ({value}) must be a list of addresses, such as ["a:2222"]'
        else:
            for index, address in enumerate(addresses):
                task = f"{job}-{index}"
                yield from _address_problems(task, str(address))
                if (owner := owners.setdefault(str(address), task)) != task:
                    yield f"{task} has the same address as {owner} ({address}); each needs its own"
            if job in ("chief", EVALUATOR) and len(addresses) > 1:
                yield f"the cluster has {len(addresses)} {job}s; there can be only one"
    present = _present(jobs)
    # A job whose name is wrong may be the one that is missing.
    if (
        set(jobs) <= set(JOBS)
        and "worker" not in present
        and ("chief" not in present or "ps" in present)
    ):
        others = " and ".join(present) or "empty jobs"
        yield f"the cluster has no worker, only {others}; add the job worker"


def _address_problems(task: str, address: str) -> Iterator[str]:
    if match := _ADDRESS.fullmatch(address):
        if not 1 <= int(match[1]) <= 65535:
            yield f"port of {task} ({address}) must be from 1 to 65535"
    else:
        scheme = re.match(r"\w+://", address)
        hint = f"without {scheme[0]}" if scheme else "such as a:2222"
        yield f"address of {task} ({address}) must be host:port, {hint}"


def _task_problems(content: Mapping[str, Any], jobs: Mapping[str, list[str]]) -> Iterator[str]:
    task = content.get("task")
    if not isinstance(task, dict):
        value = _format(content, "task")
        yield f'"task" ({value}) must say which process this is, such as {_TASK_EXAMPLE}'
        return
    job = str(task.get("type", "missing"))
    index = task.get("index")
    # An evaluator need not be in the cluster.
    count = len(jobs.get(job) or [EVALUATOR])
    if problem := _name_problem("task type", job):
        yield problem
    elif not jobs.get(job) and job not in BESIDE:
        yield f"task type ({job}) is not in the cluster, which has {', '.join(_present(jobs))}"
    elif not isinstance(index, int) or isinstance(index, bool):
        yield f"task index ({_format(task, 'index')}) must be an integer, such as 0"
    elif not 0 <= index < count:
        yield f"task index ({index}) is out of range: the cluster has {_range(count, job)}"


def _present(jobs: Mapping[str, Any]) -> list[str]:
    return [job for job in JOBS if jobs.get(job)]


def _name_problem(key: str, job: str) -> str | None:
    if job == "master":
        return f"{key} (master) is TensorFlow 1's name; write chief"
    return constraints.check_value(key, job, OneOf(*JOBS))


def _range(count: int, job: str) -> str:
    if count == 1:
        return f"1 {job}, number 0"
    plural = job if job == "ps" else f"{job}s"
    return f"{count} {plural}, 0 to {count - 1}"


def _format(content: Mapping[str, Any], key: str) -> str:
    return json.dumps(content[key]) if key in content else "missing"
