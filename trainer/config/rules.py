"""Rules across keys, and which keys go unused. No TensorFlow."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from trainer.annotations import Gt
from trainer.config import addresses, directions
from trainer.config.faults import ACTIONS, action_of
from trainer.config.modes import MODES
from trainer.config.options import constraints, targets
from trainer.config.options.constraints import format_value, unknown_name
from trainer.config.schema import GROUPS, NAMED_GROUPS, ONE_CHOICE, PAIRS, Experiment, Pause
from trainer.files import component
from trainer.optional_packages import missing

TARGET_GROUPS = (
    "model", "dataset", "augment", "env", "buffer", "task", "optimizer", "schedule", "strategy",
    "search",
)  # fmt: skip
"""Groups with one choice, which is a `_target_` with its options."""
CLIPS = ("clip_norm", "clip_value")

_OPTIONAL_GROUPS = ("model", "optimizer")
"""Target groups that a task may do without; see `check_left_out`."""
_NAME_RULE = "use letters, digits, '.', '_' and '-', at most 100"
_TIMES = re.compile(r"\d+(\.\d*)?(e-?\d+)?x")


def check(experiment: Experiment) -> list[str]:
    """Return all problems of an experiment, one line each."""
    return [line for rule in _RULES for line in rule(experiment)]


def check_unused(experiment: Experiment, overrides: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each override that sets a key that nothing uses; null is allowed."""
    reasons = _unused(experiment)
    for key in dict.fromkeys(key for key, value in overrides if value != "null"):
        section = f"{key.replace('/', '.')}."
        if name := next((name for name in reasons if section.startswith(f"{name}.")), None):
            yield f"{key} {reasons[name]}; remove it"


def remove_unused(experiment: Experiment) -> None:
    """Remove the groups that nothing uses, so that they do not name the run."""
    for group in set(_unused(experiment)).intersection(GROUPS):
        setattr(experiment, group, None if group in ONE_CHOICE else {})
        experiment.choices[group] = None


def _unused(experiment: Experiment) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if (name := experiment.own_loop) is not None:
        reason = f"is a key of the built-in loop, and loop ({name}) replaces that"
        reasons |= dict.fromkeys(_built_in(Experiment), reason)
    if experiment.env is None:
        return {**dict.fromkeys(("buffer", "actors"), "needs env=<choice>"), **reasons}
    env = experiment.choices.get("env")
    return {"dataset": f"is not used: env ({env}) replaces it", **reasons}


def _built_in(schema: Any, path: str = "") -> Iterator[str]:
    for item in fields(schema):
        section: Any = item.default_factory
        if item.metadata["built_in"]:
            yield f"{path}{item.name}"
        elif is_dataclass(section):
            yield from _built_in(section, f"{path}{item.name}.")


def _loop(experiment: Experiment) -> Iterator[str]:
    """A loop of the user's own makes its models, data and updates itself."""
    name = experiment.own_loop
    if name is None:
        return
    modes = [name for name, mode in MODES.items() if mode.with_loop]
    if experiment.mode not in modes:
        yield (
            f"mode ({experiment.mode}) needs the built-in loop, and loop is {name}; "
            f"use one of {', '.join(modes)}"
        )
    if experiment.train.steps is None:
        yield f"train.steps (null) must be set with loop ({name}); add train.steps=<int>"
    if experiment.precision == "mixed_float16":
        yield (
            f"precision (mixed_float16) needs a loss scale, which loop ({name}) does not have; "
            "add precision=mixed_bfloat16"
        )
    if (count := (experiment.strategy or {}).get("devices_per_replica", 1)) != 1:
        yield (
            f"strategy.devices_per_replica ({count}) needs the built-in loop, which has the "
            f"task's models and places their gradients, and loop is {name}; remove it"
        )


def _env(experiment: Experiment) -> Iterator[str]:
    """An environment takes the place of a dataset."""
    if experiment.env is None:
        return
    env = (experiment.choices or {}).get("env")
    if problem := missing("gymnasium", "steadfast-trainer[gymnasium]"):
        yield f"env ({env}) {problem}"
    modes = [name for name, mode in MODES.items() if mode.with_env]
    if experiment.mode not in modes:
        yield (
            f"mode ({experiment.mode}) cannot be used with env ({env}): what actors send is "
            f"another in each run, and no split can be predicted; use one of {', '.join(modes)}"
        )
    if experiment.train.steps_per_epoch is None:
        yield (
            f"train.steps_per_epoch (null) must be set with env ({env}), which has no pass over "
            "the data; add train.steps_per_epoch=100"
        )
    rollback = experiment.divergence.action == "rollback" and "rollback"
    inline = experiment.trains and experiment.launch.inline
    once = "frames of actors are seen once"
    refused: list[tuple[str, Any, str, str]] = [
        ("divergence.action", rollback, once, "skip"),
        ("batch.shards", experiment.batch.shards, "no run repeats", "null"),
        ("metrics", ", ".join(experiment.metrics), "they are of labels", "[]"),
        ("evaluate.sidecar", experiment.evaluate.sidecar, "it evaluates a dataset", "false"),
        ("launch.inline", inline, "actors are processes", "false"),
        ("summary.histograms", experiment.summary.histograms, once, "null"),
        ("summary.images", experiment.summary.images, once, "null"),
        ("summary.misclassified", experiment.summary.misclassified, once, "0"),
    ]
    for key, value, reason, instead in refused:
        if value:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"{key} ({shown}) cannot be used with env ({env}): {reason}; add {key}={instead}"


def _pairs(experiment: Experiment) -> Iterator[str]:
    for first, second in PAIRS:
        values = attrgetter(first, second)(experiment)
        if None not in values:
            yield (
                f"{first} ({values[0]}) and {second} ({values[1]}) are both set, "
                f"exactly one must be; add {second}=null"
            )
        if values == (None, None):
            yield (
                f"neither {first} nor {second} is set, exactly one must be; add {first}=<number>"
            )


def _names(experiment: Experiment) -> Iterator[str]:
    """Files are named after runs, and after what has a name in them."""
    for key, name in (("name", experiment.name), ("sweep.name", experiment.sweep.name)):
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            yield f"{key} ({name}) must be usable in a directory's name; {_NAME_RULE}"
    for group in NAMED_GROUPS:
        nodes = getattr(experiment, group)
        for name in nodes if isinstance(nodes, Mapping) else ():
            try:
                component(name)
            except ValueError as error:
                yield f"{group}: {error}; files of the run are named after it"


def run_problem(resume: str) -> str | None:
    """Return why `resume` is not a run directory, or None if it is one.

    What is in an object store is read when the run is brought from there.
    """
    if addresses.is_remote(resume):
        return addresses.problem("resume", resume)
    path = Path(resume).expanduser()
    if (path / "config.yaml").is_file():
        return None
    problem = "no run there: it has no config.yaml" if path.exists() else "no such run directory"
    return f"resume ({resume}): {problem}; give the path of a run directory, or auto, or never"


def _resume(experiment: Experiment) -> Iterator[str]:
    names, mode = experiment.resume_allow, experiment.mode
    if experiment.resume not in ("auto", "never"):
        if line := run_problem(experiment.resume):
            yield line
        keys = asdict(experiment)
        for name in names:
            if line := unknown_name(name, keys):
                yield f"resume_allow: {line}"
    elif names:
        yield f"resume_allow ({names}) needs a run; add resume=<run directory>"
    if experiment.resume == "never" and experiment.needs_run:
        yield f"mode ({mode}) needs a run; add resume=<run directory>"
    if mode == "verify" and experiment.fault:
        faults = ", ".join(f"fault.{name}" for name in experiment.fault)
        yield f"mode ({mode}) is for runs without faults; remove {faults}"


def _place(experiment: Experiment) -> Iterator[str]:
    """The run must be kept in a directory that can be written, or in a store."""
    is_named = experiment.resume not in ("auto", "never")
    place = experiment.resume if is_named else experiment.runs_dir
    if not addresses.is_remote(place):
        yield from () if is_named else _folder("runs_dir", place)
        return
    if not is_named and (line := addresses.problem("runs_dir", place)):
        yield line
    yield from _folder("store.work_dir", experiment.store.work_dir)
    if not is_named and experiment.mode == "verify":
        yield (
            f"mode ({experiment.mode}) trains its own runs, which need a folder of this "
            f"machine, not runs_dir ({place}); add runs_dir=runs"
        )


def _folder(key: str, folder: str) -> Iterator[str]:
    path = Path(folder).expanduser()
    existing = next(
        folder
        for folder in (path, *path.absolute().parents)
        if folder.exists() or folder.is_symlink()
    )
    fix = f"choose another with {key}=<directory>"
    if not existing.is_dir():
        yield f"{key} ({folder}) must be a directory, but {existing} is a file; {fix}"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"{key} ({folder}) must be writable, but {existing} is not; {fix}"


def _checkpoint(experiment: Experiment) -> Iterator[str]:
    checkpoint = experiment.checkpoint
    for name in ("save_policy", "retention_policy"):
        key = f"checkpoint.{name}"
        if (node := getattr(checkpoint, name)) is not None:
            yield from targets.check(node, key, key)
    metric = checkpoint.best.metric
    if metric is not None and not re.fullmatch(r"[\w./-]+", metric):
        yield f"checkpoint.best.metric ({metric}) must be the name of a metric, e.g. accuracy"
    if not experiment.needs_run and checkpoint.use != "latest":
        yield (
            f"checkpoint.use ({checkpoint.use}) is for mode=evaluate, export and predict; a "
            "training continues from the newest, or starts with a checkpoint's weights: "
            "init_from=<run>/checkpoints/ckpt-<step>"
        )
    if checkpoint.memory == "never" and checkpoint.memory_every_steps is not None:
        yield (
            f"checkpoint.memory_every_steps ({checkpoint.memory_every_steps}) has no effect with "
            "checkpoint.memory=never; remove one of them"
        )


def _directions(experiment: Experiment) -> Iterator[str]:
    """Nothing may select by a metric without a direction that sources declare."""
    if line := directions.list_problem(experiment.sweep):
        yield line
        return
    if experiment.needs_run or experiment.own_loop is not None:
        return
    if selections := list(directions.selections(experiment)):
        declared = directions.declared(experiment)
        for selection in selections if declared.is_complete else ():
            if line := declared.problem(*selection):
                yield line


def _validation(experiment: Experiment) -> Iterator[str]:
    node = experiment.dataset if isinstance(experiment.dataset, Mapping) else {}
    value = node.get("validation")
    if isinstance(value, bool) or value == "":
        return  # refused already: every dataset declares the type of this key
    if isinstance(value, int | float) and not 0 < value < 1:
        yield f"dataset.validation ({value}) must be a fraction > 0 and < 1, or a path, or null"
    if isinstance(value, str) and targets.takes(str(node.get("_target_")), "test_path") is False:
        yield (
            f"dataset.validation ({value}) is a path, and {node['_target_']} reads no files to "
            "test on (test_path); give the fraction of the training split, e.g. 0.1"
        )


def _writers(experiment: Experiment) -> Iterator[str]:
    if not isinstance(experiment.writers, Mapping) or not experiment.trains:
        return
    for name, node in experiment.writers.items():
        target = node.get("_target_") if isinstance(node, Mapping) else None
        if missing := targets.missing_package(str(target)):
            yield f"writers.{name} ({target}) {missing}"


def _sidecar(experiment: Experiment) -> Iterator[str]:
    # The other modes take over a run's overrides, and evaluate or export just the same.
    if not experiment.evaluate.sidecar or not experiment.trains:
        return
    metric = experiment.checkpoint.best.metric
    without = "add evaluate.sidecar=false"
    nodes = experiment.writers if isinstance(experiment.writers, Mapping) else {}
    if trackers := [
        name for name, node in nodes.items() if isinstance(node, Mapping) and node.get("tracker")
    ]:
        yield (
            f"evaluate.sidecar (true) leaves writers ({', '.join(trackers)}) without evaluations, "
            f"for they take a run from one process; remove them or {without}"
        )
    if isinstance(experiment.callbacks, Mapping) and experiment.callbacks:
        yield (
            f"evaluate.sidecar (true) leaves callbacks ({', '.join(experiment.callbacks)}) without "
            f"evaluations; remove them or {without}"
        )
    if metric is not None:
        yield (
            "evaluate.sidecar (true) leaves checkpoints without checkpoint.best.metric "
            f"({metric}) when they are saved; add checkpoint.best.metric=null or "
            "evaluate.sidecar=false"
        )
    if experiment.launch.inline:
        yield (
            "evaluate.sidecar (true) needs a separate process, which launch.inline (true) does "
            f"not allow; {without}"
        )


def _pause(experiment: Experiment) -> Iterator[str]:
    pause = experiment.pause
    if pause.at_step is not None and pause.at_epoch is not None:
        yield (
            f"pause.at_step ({pause.at_step}) and pause.at_epoch ({pause.at_epoch:g}) are both "
            "set; set one"
        )
    if pause != Pause() and experiment.evaluate.sidecar:
        yield (
            "evaluate.sidecar (true) evaluates while training continues, so pause has nothing to "
            "pause at; add evaluate.sidecar=false"
        )


def _faults(experiment: Experiment) -> Iterator[str]:
    for name, fault in (experiment.fault or {}).items():
        path = f"fault.{name}"
        action = f"{path}.action is {fault.kind}"
        if fault.kind == "own":
            yield from targets.check(fault.action, f"{path}.action", "fault.action")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", str(name)):
            yield f"{path} must be usable as a file's name; {_NAME_RULE}"
        if fault.kind != "own" and fault.kind not in ACTIONS:
            continue  # reported already
        for key, fixed in action_of(fault.kind).fixed.items():
            if (value := getattr(fault, key)) != fixed:
                yield (
                    f"{path}.{key} ({format_value(value)}) must be {format_value(fixed)} "
                    f"where {action}"
                )
        if action_of(fault.kind).needs_loop and (own_loop := experiment.own_loop):
            yield (
                f"{action}, which needs the built-in loop, and loop is {own_loop}; "
                "choose another action"
            )
        if fault.kind == "slow" and not fault.delay_secs:
            yield f"{path}.delay_secs ({fault.delay_secs}) must be > 0 where {action}"


def _divergence(experiment: Experiment) -> Iterator[str]:
    divergence = experiment.divergence
    steps = divergence.rollback_steps
    if steps > 1 and divergence.action != "rollback":
        yield (
            f"divergence.rollback_steps ({steps}) needs divergence.action=rollback, it is "
            f"{divergence.action}; add divergence.action=rollback"
        )
    if steps > divergence.max_skips:
        yield (
            f"divergence.rollback_steps ({steps}) must be <= divergence.max_skips "
            f"({divergence.max_skips}); add divergence.max_skips={steps}"
        )
    if steps > 1 and experiment.evaluate.sidecar and experiment.trains:
        yield (
            f"divergence.rollback_steps ({steps}) removes checkpoints that evaluate.sidecar (true) "
            "may have evaluated; add divergence.rollback_steps=1 or evaluate.sidecar=false"
        )
    every = experiment.watchdog.audit_every_steps
    if every is not None and divergence.action == "skip":
        yield (
            f"watchdog.audit_every_steps ({every}) cannot be used with divergence.action (skip): "
            "to skip an update does not repair a variable that is wrong; add "
            "divergence.action=rollback or stop"
        )


def check_groups(experiment: Experiment) -> Iterator[str]:
    """Yield a line for each option that does not fit the signature of its target."""
    absent = ("env", "buffer") if experiment.env is None else ("dataset",)
    groups = TARGET_GROUPS if experiment.own_loop is None else ("strategy", "search", "loop")
    for group in groups:
        node = getattr(experiment, group)
        if node is not None or group not in (*_OPTIONAL_GROUPS, *absent):
            yield from targets.check(node, group, group)
    for section in NAMED_GROUPS:
        nodes = getattr(experiment, section)
        if not isinstance(nodes, Mapping):
            yield (
                f"{section} ({nodes}) must be a mapping from names to {section}; "
                f"choose one with {section}=<choice>"
            )
            continue
        for name, node in nodes.items():
            yield from targets.check(node, f"{section}.{name}", section)


def check_left_out(experiment: Experiment, choices: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each group without a value that the task needs.

    It does not need one if it has nodes of the group, or if a file chooses nothing in it
    (`override /model@_global_.model: null`).
    """
    task = experiment.task if isinstance(experiment.task, Mapping) else {}
    own = targets.node_groups(task.get("_target_")).values()
    for group in _OPTIONAL_GROUPS if experiment.own_loop is None else ():
        if getattr(experiment, group) is None and group not in own and group not in choices:
            yield f"{group} has no value; add {group}=<choice>"


def check_twice(
    container: Mapping[str, Any], overrides: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """Yield what is chosen twice, or set under two names, where several may be chosen."""
    for key, value in overrides:
        names = value.strip("[] ").split(",") if key in NAMED_GROUPS else []
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{key} names {name} twice; remove one of them"
    for group in NAMED_GROUPS:
        nodes = container.get(group)
        items = nodes.items() if isinstance(nodes, Mapping) else ()
        for (other, earlier), (name, node) in itertools.combinations(items, 2):
            if node == earlier and isinstance(node, Mapping):
                yield f"{group}.{name} is the same as {group}.{other}; remove one of them"


def _weights(experiment: Experiment) -> Iterator[str]:
    """Frozen layers, groups and initial weights; only the built models show which there are."""
    train = experiment.train
    rename = experiment.init_rename
    if rename is not None and not isinstance(rename, Mapping):
        yield (
            f"init_rename ({format_value(rename)}) must be a mapping from regular expressions to "
            "what replaces them, such as {backbone/: encoder/}"
        )
        rename = None
    rename = rename or {}
    for key, patterns in (
        ("train.freeze", train.freeze),
        ("train.lora.layers", train.lora.layers),
        ("init_allow", experiment.init_allow),
        ("init_rename", rename),
    ):
        yield from _patterns(key, patterns)
    for key, patterns in (("init_allow", experiment.init_allow), ("init_rename", rename)):
        names = ", ".join(map(str, patterns))
        if patterns and experiment.init_from is None:
            yield f"{key} ({names}) needs init_from; add init_from=<run or file>"
        elif patterns and experiment.init_state:
            yield f"{key} ({names}) is for weights alone; leave it or init_state=true out"
    if experiment.init_state and experiment.init_from is None:
        yield "init_state (true) needs init_from; add init_from=<run or checkpoint>"
    for pattern, replacement in rename.items():
        with suppress(re.error):  # of the pattern: reported above
            compiled = re.compile(str(pattern))
            try:
                compiled.sub(replacement, "")
            except (re.error, IndexError, TypeError) as error:
                yield f"init_rename.{pattern} ({replacement}) is no replacement: {error}"
    yield from _one_clip("train", {name: getattr(train, name) for name in CLIPS})
    yield from _weight_groups(experiment.optimizer, "optimizer")
    task = experiment.task if isinstance(experiment.task, Mapping) else {}
    for name, group in targets.node_groups(task.get("_target_")).items():
        if group == "optimizer":
            yield from _weight_groups(task.get(name), f"task.{name}")


def _weight_groups(node: Any, key: str) -> Iterator[str]:
    """Check the groups of an optimizer; those that are no mapping are reported elsewhere."""
    groups = node.get("groups") if isinstance(node, Mapping) else None
    if not isinstance(groups, Mapping):
        return
    yield from _patterns(f"{key}.groups", groups)
    for pattern, options in groups.items():
        name = f"{key}.groups.{pattern}"
        if not isinstance(options, Mapping) or not options:
            yield (
                f"{name} ({format_value(options)}) must be a mapping from options to values, such "
                "as {learning_rate: 10x}"
            )
            continue
        rate = options.get("learning_rate")
        is_factor = isinstance(rate, str) and _TIMES.fullmatch(rate) is not None
        if not is_factor and (isinstance(rate, str) or constraints.violation(rate, [Gt(0)])):
            yield (
                f"{name}.learning_rate ({rate}) must be a number > 0, or a multiple of the common "
                "rate such as 10x"
            )
        clips = {clip: options.get(clip) for clip in CLIPS}
        for clip, value in clips.items():
            if line := constraints.check_value(f"{name}.{clip}", value, Gt(0)):
                yield line
        yield from _one_clip(name, clips)
        own = {key: value for key, value in options.items() if key not in (*CLIPS, "learning_rate")}
        yield from targets.check(
            {"_target_": node.get("_target_"), **own}, name, "optimizer.groups"
        )


def _one_clip(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    if None not in values.values():
        yield (
            f"{key}.clip_norm ({values['clip_norm']}) and {key}.clip_value "
            f"({values['clip_value']}) are both set, at most one may be; add {key}.clip_value=null"
        )


def _patterns(key: str, patterns: Any) -> Iterator[str]:
    for pattern in patterns:
        try:
            re.compile(str(pattern))
        except re.error as error:
            yield f"{key} ('{pattern}') is no regular expression: {error}"


def _augmentation(experiment: Experiment) -> Iterator[str]:
    """The dataset must take the chosen augmentation, and not have it set itself."""
    nodes = list(_nodes(experiment.dataset, "dataset"))
    for key, node in nodes:
        if "augment" in node and targets.takes(node["_target_"], "augment"):
            yield f"{key}.augment is set by the group augment; write augment.<option>=<value>"
    active = _active(experiment.augment)
    if nodes and active and not any(_takes(node, key == "dataset") for key, node in nodes):
        options = ", ".join(f"augment.{name}" for name in active)
        yield (
            f"dataset ({experiment.dataset['_target_']}) takes no augmentation, but {options} is "
            "set; add augment=none"
        )


def augmented(dataset: Any, augment: Any) -> Any:
    """Return a dataset's node with that of the group `augment` in it, at any depth.

    A dataset takes it by a parameter `augment`; the datasets that it is made of, nodes in its
    options, do the same.
    """
    return dataset if augment is None else _augmented(dataset, augment, is_outermost=True)


def _augmented(value: Any, augment: Any, *, is_outermost: bool = False) -> Any:
    if isinstance(value, list):
        return [_augmented(item, augment) for item in value]
    if not isinstance(value, Mapping):
        return value
    node = {name: _augmented(item, augment) for name, item in value.items()}
    taken = _takes(node, is_outermost) and "augment" not in node
    # One that takes any option may pass it on to one that does not.
    is_known = taken and targets.takes(node["_target_"], "augment")
    return {**node, "augment": augment} if is_known or (taken and _active(augment)) else node


def _takes(node: Mapping[str, Any], is_outermost: bool) -> bool:
    """Return whether a node takes an augmentation; the outermost also if only calls show it."""
    if not isinstance(node.get("_target_"), str):
        return False
    taken = targets.takes(node["_target_"], "augment")
    return is_outermost if taken is None else taken


def _nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nodes(item, f"{key}[{index}]")
    elif isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str):
            yield key, value
        for name, item in value.items():
            yield from _nodes(item, f"{key}.{name}")


def _active(augment: Any) -> list[str]:
    """Return the options that change something: those that are not off, 0 or null."""
    options = augment if isinstance(augment, Mapping) else {}
    return [name for name, value in options.items() if value and name != "_target_"]


_RULES = (
    _loop, _env, _pairs, _names, _resume, _place, _checkpoint, _directions, _validation, _writers,
    _sidecar, _pause, _faults, _divergence, check_groups, _weights, _augmentation,
)  # fmt: skip
"""Each yields the problems of an experiment, one line each."""
