"""Identity: which keys name a run directory, and which may change when a run is continued.

The name of a run directory contains a hash of the keys that make the experiment. So the same
command finds the same directory: a preempted job resumes without a human, and a sweep finds the
points that are done.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.annotations import Effect, Free, Semantic, Structural
from trainer.config import addresses, loading
from trainer.config.options import constraints, targets
from trainer.config.schema import ENGINE_KEYS, GROUPS, NAMED_GROUPS, Experiment, Fault
from trainer.runs.secret_masking import shown

_DIGITS = 12
"""Of the hash in the name of a run; they are hexadecimal."""
_COMMAND_KEYS = ("resume", "resume_allow", "mode", "pause", "choices", "sweep", "search")


def leaves(experiment: Experiment) -> dict[str, Any]:
    """Return every value of the configuration by its dotted key."""
    return dict(flatten(loading.plain(experiment)))


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested mappings with its dotted key."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration by dotted key, and after it the defaults of options that it lacks."""
    return _completed(values, {**_schema_defaults(), **_option_defaults(values)})


def differing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that are not the defaults of their options."""
    # A section without choices is {} or null.
    values = {key: value or None if key in GROUPS else value for key, value in values.items()}
    return _differing(values, _schema_defaults())


def normal(value: Any) -> Any:
    """Return a value in the form of all equal ones: 1 for 1.0, a node without its defaults."""
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    if isinstance(value, Mapping):
        return _differing(dict(flatten(value)), {})
    return int(value) if isinstance(value, float) and value.is_integer() else value


def task_groups(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of the nodes of a task, each with the group of its choices."""
    groups = targets.node_groups(values.get("task._target_"))
    return {f"task.{name}": group for name, group in groups.items()}


def _differing(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not the defaults, given those of the schema."""
    # A node without a function is None.
    sections = {key.rpartition(".")[0] for key in values if key.endswith("._partial_")}
    empty = {section for section in sections if values.get(f"{section}._target_") is None}
    rest = {key: value for key, value in values.items() if key.rpartition(".")[0] not in empty}
    values = {**rest, **dict.fromkeys(empty)}
    defaults = {**schema, **_option_defaults(values)}
    normalized = {key: normal(value) for key, value in _completed(values, defaults).items()}
    return {
        key: value
        for key, value in normalized.items()
        if (value != normal(defaults[key]) if key in defaults else not _is_gone(key, values))
    }


def _is_gone(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether a key is off, and an option that its target had when the run was begun."""
    section, _, last = key.rpartition(".")
    target = values.get(f"{section}._target_")
    return (
        not values.get(key, ...)
        and isinstance(target, str)
        and targets.takes(target, last) is False
    )


def _completed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    present = set(values)
    for key in values:
        while "." in key and (key := key.rpartition(".")[0]) not in present:
            present.add(key)
    return {**values, **{key: value for key, value in defaults.items() if key not in present}}


def _option_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of each option of the targets and faults among values, by dotted key."""
    defaults: dict[str, Any] = {}
    groups = task_groups(values)
    for key, target in values.items():
        section, _, last = key.rpartition(".")
        prefix = section and f"{section}."
        options: Mapping[str, Any] = {}
        if last == "_target_":
            group = groups.get(section, section.partition(".")[0])
            engine_keys = dict.fromkeys(ENGINE_KEYS.get(group, ()))
            options = {**engine_keys, **targets.defaults(target)}
        elif last == "action" and section.startswith("fault."):
            options = _FAULT
        defaults |= {f"{prefix}{name}": value for name, value in options.items()}
    return defaults


_FAULT = {name: value for name, value in asdict(Fault()).items() if name != "action"}
"""Not the action, because it declares the fault."""


@functools.cache
def _schema_defaults() -> Mapping[str, Any]:
    return leaves(Experiment())


@dataclass(frozen=True)
class Change:
    """A key that differs between a run and the command that continues it; None: it is missing.

    Attributes:
        role: the key that has the same effect: `model.width` for `task.generator.width` where the
            option `generator` of the task is a model; None: the key itself.
    """

    key: str
    before: Any
    now: Any
    role: str | None = field(default=None, compare=False)
    target: Any = field(default=None, compare=False)

    @property
    def effect(self) -> Effect:
        """The effect of the change on a run that is continued."""
        effect = effect_of(self.role or self.key, self.target)
        apart = effect.apart if isinstance(effect, Semantic) else ()
        return Structural() if (self.before in apart) != (self.now in apart) else effect

    @property
    def shown(self) -> tuple[Any, Any]:
        """Both values as they are recorded and shown: without secrets."""
        return shown(self.before, self.key), shown(self.now, self.key)

    def __str__(self) -> str:
        before, now = map(constraints.format_value, self.shown)
        return f"{self.key}: {before} -> {now}"


def effect_of(key: str, target: Any = None) -> Effect:
    """Return the effect of a key, as it is stated where the key is declared, or by its section.

    Raises:
        LookupError: nothing states one.
    """
    schema: Any = Experiment
    effect: Effect | None = None
    for part in key.split("."):
        item = next((item for item in fields(schema) if item.name == part), None)
        if item is None:
            break
        effect = item.metadata["effect"] or effect
        schema = item.default_factory
        if is_dataclass(schema):
            continue
        option = key.removeprefix(f"{_node(key)}.")
        if option == "_target_":
            return item.metadata["target"]
        effect = targets.effect(target, option.partition(".")[0]) or effect
        break
    if effect is None:
        raise LookupError(
            f"{key} has no effect; add Free(), Semantic() or Structural() to it in "
            "trainer/config/schema.py"
        )
    return effect


def names_run(key: str, values: Mapping[str, Any]) -> bool:
    """Return whether another value of a key, of all by dotted key, names another run directory."""
    effect = effect_of(key, values.get(f"{_node(key)}._target_"))
    return not isinstance(effect, Free) or effect.names_run


def _node(key: str) -> str:
    """Return the key of the node that a key is within: `model`, or `callbacks.mine`."""
    parts = key.split(".")
    return ".".join(parts[: 2 if parts[0] in NAMED_GROUPS else 1])


def run_name(experiment: Experiment) -> str:
    """Return the name of the run directory, `<name>-<hash>`."""
    data = experiment.data_group
    dataset = (experiment.choices or {}).get(data, data)
    loop_name = experiment.own_loop
    name = (
        experiment.name or loop_name or f"{trained_choice(experiment)}-{dataset}".replace("/", "-")
    )
    return f"{name}-{digest(experiment)[:_DIGITS]}"


def digest(experiment: Experiment) -> str:
    """Return the hash of all that makes an experiment; a run is named by the first digits."""
    values = leaves(experiment)
    naming = {key: value for key, value in differing(values).items() if names_run(key, values)}
    return hashlib.sha256(json.dumps(naming, sort_keys=True, default=str).encode()).hexdigest()


def run_address(experiment: Experiment) -> str | None:
    """Return the address of an experiment's run in an object store, or None if it is local."""
    if experiment.resume not in ("auto", "never"):
        return experiment.resume if addresses.is_remote(experiment.resume) else None
    if not addresses.is_remote(experiment.runs_dir):
        return None
    return addresses.join(experiment.runs_dir, run_name(experiment))


def run_path(experiment: Experiment) -> Path:
    """Return the directory of an experiment on this machine, which need not exist."""
    if address := run_address(experiment):
        return addresses.work_folder(experiment.store.work_dir, address)
    if experiment.resume not in ("auto", "never"):
        return Path(experiment.resume).expanduser()
    return Path(experiment.runs_dir).expanduser() / run_name(experiment)


def joined_path(experiment: Experiment, process: str) -> Path:
    """Return the directory of a process that is not the chief: of a run in a store, its own."""
    path = run_path(experiment)
    # Not the chief's: machines may have one home directory.
    return path.with_name(f"{path.name}.{process}") if run_address(experiment) else path


def trained_choice(experiment: Experiment) -> str:
    """Return the choice that names what is trained: the model, or the task if it has its own.

    Of a model without a choice, `override /model: null`, the path of its target; of a model that
    `fit` has kept in a file, its name.
    """
    if experiment.model is None:
        return str((experiment.choices or {}).get("task", "task"))
    if str(experiment.model.get("_target_")).startswith("trainer.fitting."):
        return experiment.name or "model"
    choice = (experiment.choices or {}).get("model", "model")
    return str(experiment.model.get("_target_") if choice is None else choice)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return every key that differs, except those that concern a single command."""
    before, now = completed(before), completed(now)
    keys = [
        key
        for key in dict.fromkeys([*before, *now])
        if not _within(key, _COMMAND_KEYS) and (key in now or not _is_gone(key, before))
    ]
    # An empty section counts as missing: its first key is the change.
    pairs = ((key, before.get(key), now.get(key)) for key in keys)
    groups = {**task_groups(before), **task_groups(now)}
    merged = {**before, **now}
    differences = (
        _change(key, None if old == {} else old, None if new == {} else new, groups, merged)
        for key, old, new in pairs
    )
    return [change for change in differences if normal(change.before) != normal(change.now)]


def _change(
    key: str, old: Any, new: Any, groups: Mapping[str, str], values: Mapping[str, Any]
) -> Change:
    node = ".".join(key.split(".")[:2])
    if node not in groups:
        return Change(key, old, new, target=values.get(f"{_node(key)}._target_"))
    role = groups[node] + key.removeprefix(node)
    return Change(key, old, new, role, values.get(f"{node}._target_"))


def change_problems(path: Path, differing: Sequence[Change], experiment: Experiment) -> list[str]:
    """Return which changes `experiment` must not make, and the ways out, one line each."""
    loop_name = experiment.own_loop
    if loop_name is not None and any(
        _within(change.key, ["strategy"]) and change.effect == Free(names_run=True)
        for change in differing
    ):
        return [
            f"{path} was trained with another strategy, and a run of loop ({loop_name}) keeps "
            "its own: what a step computes and what streams give depends on the replicas and "
            "processes; leave the strategy as it was, or start a new run"
        ]
    semantic = [change.key for change in differing if isinstance(change.effect, Semantic)]
    structural = [change.key for change in differing if isinstance(change.effect, Structural)]
    allowed = experiment.resume_allow
    rejected = [*structural, *(key for key in semantic if not _within(key, allowed))]
    if not rejected:
        return []
    lines = [
        f"  {change}{' (makes variables)' if change.key in structural else ''}"
        for change in differing
        if change.key in rejected
    ]
    pronoun, old = ("it", "it was") if len(rejected) == 1 else ("them", "they were")
    is_named = experiment.resume not in ("auto", "never")
    resume = "" if is_named else f"resume={path} "
    keep = f"leave {pronoun} as {old}" if is_named else f"continue as it was with {resume}alone"
    # A section instead of its keys where its choice has changed.
    sections = [key.removesuffix("._target_") for key in semantic if key.endswith("._target_")]
    allowing = ",".join([*sections, *(key for key in semantic if not _within(key, sections))])
    allow = "" if structural else f"allow {pronoun} with {resume}resume_allow=[{allowing}], "
    condition = ", if the model is the same" if structural else ""
    new = f"start a new run (init_from={path} takes its weights{condition})"
    return [f"{path} was trained with other values:", *lines, f"{keep}, {allow}or {new}"]


def _within(key: str, parents: Sequence[str]) -> bool:
    return any(key == parent or key.startswith(f"{parent}.") for parent in parents)
