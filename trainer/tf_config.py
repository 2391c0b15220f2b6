"""What can be wrong with a cluster as TF_CONFIG declares it. TensorFlow itself would wait for ever, or train alone. No TensorFlow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainer import rules

JOBS = ("chief", "worker", "ps", "evaluator")

# What TensorFlow reads, and "job", which Google Cloud adds.
_KEYS = ("cluster", "task", "environment", "rpc_layer", "session_master", "job")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]+)")
_EXAMPLE = '{"worker": ["a:2222", "b:2222"]}'


def problems(content: Any) -> Iterator[str]:
    """Gives what is wrong, a line each; what follows from an earlier problem is left out.

    Args:
        content: what its JSON says.
    """
    if not isinstance(content, dict):
        yield f'{json.dumps(content)} must be an object with "cluster" and "task"'
        return
    for key in content:
        if key not in _KEYS:
            yield f"unknown key '{key}'{rules.did_you_mean(key, _KEYS) or '; it has cluster and task'}"
    jobs = content.get("cluster")
    if not isinstance(jobs, dict) or not jobs:
        yield f'"cluster" ({_shown(content, "cluster")}) must map jobs to their addresses, such as {_EXAMPLE}'
        return
    yield from list(_of_jobs(jobs)) or _of_task(content, jobs)


def _of_jobs(jobs: Mapping[str, Any]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for job, addresses in jobs.items():
        if problem := _of_name("job", job):
            yield problem
        elif not isinstance(addresses, list):
            yield f'job {job} ({json.dumps(addresses)}) must be a list of addresses, such as ["a:2222"]'
        else:
            for index, address in enumerate(addresses):
                task = f"{job}-{index}"
                yield from _of_address(task, str(address))
                if (owner := owners.setdefault(str(address), task)) != task:
                    yield f"{task} has the same address as {owner} ({address}); each needs its own"
            if job in ("chief", "evaluator") and len(addresses) > 1:
                yield f"the cluster has {len(addresses)} {job}s; there can be only one"
    present = _present(jobs)
    # A job whose name is wrong may be the one that is missing.
    if set(jobs) <= set(JOBS) and "worker" not in present and ("chief" not in present or "ps" in present):
        yield f"the cluster has no worker, only {' and '.join(present) or 'empty jobs'}; add the job worker"


def _of_address(task: str, address: str) -> Iterator[str]:
    if match := _ADDRESS.fullmatch(address):
        if not 1 <= int(match[1]) <= 65535:
            yield f"port of {task} ({address}) must be from 1 to 65535"
    else:
        scheme = re.match(r"\w+://", address)
        yield f"address of {task} ({address}) must be host:port{f', without {scheme[0]}' if scheme else ', such as a:2222'}"


def _of_task(content: Mapping[str, Any], jobs: Mapping[str, list[str]]) -> Iterator[str]:
    task = content.get("task")
    if not isinstance(task, dict):
        yield f'"task" ({_shown(content, "task")}) must say which process this is, such as {{"type": "worker", "index": 0}}'
        return
    job, index = str(task.get("type", "missing")), task.get("index")
    # Who evaluates need not be in the cluster.
    count = len(jobs.get(job) or ["evaluator"])
    if problem := _of_name("task type", job):
        yield problem
    elif not jobs.get(job) and job != "evaluator":
        yield f"task type ({job}) is not in the cluster, which has {', '.join(_present(jobs))}"
    elif not isinstance(index, int) or isinstance(index, bool):
        yield f"task index ({_shown(task, 'index')}) must be an integer, such as 0"
    elif not 0 <= index < count:
        yield f"task index ({index}) is out of range: the cluster has {_counted(count, job)}"


def _present(jobs: Mapping[str, Any]) -> list[str]:
    return [job for job in JOBS if jobs.get(job)]


def _of_name(what: str, job: str) -> str | None:
    if job == "master":
        return f"{what} (master) is TensorFlow 1's name; write chief"
    return rules.problem(what, job, " | ".join(JOBS))


def _counted(count: int, job: str) -> str:
    return f"1 {job}, number 0" if count == 1 else f"{count} {job if job == 'ps' else f'{job}s'}, 0 to {count - 1}"


def _shown(content: Mapping[str, Any], key: str) -> str:
    return json.dumps(content[key]) if key in content else "missing"
