"""Composes experiments from overrides, in the only way that there is. No TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import hydra
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from trainer.cli.error_messages import USER_ERRORS, explain, reading_configuration
from trainer.cli.overrides import OURS, override_key, rewrite
from trainer.cli.overrides import section as section_of
from trainer.config import loading, yaml_text
from trainer.config.options import targets
from trainer.config.options.constraints import unknown_name
from trainer.config.rules import TARGET_GROUPS
from trainer.config.schema import ENGINE_KEYS, ONE_CHOICE, Experiment
from trainer.errors import ConfigError
from trainer.text import did_you_mean

# As plain values: `trainer.config.loading` checks them, not Hydra.
ConfigStore.instance().store(
    group="schema", name="experiment", node=loading.plain(Experiment()), provider="steadfast"
)


_Files = tuple[tuple[str, int, int], ...]


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> Experiment:
    """Compose and check an experiment, just as the command line does.

    Raises:
        ConfigError: with every problem found.
    """
    try:
        directory = None if config_dir is None else str(config_dir)
        return compose_config(*rewrite(list(overrides), directory)).load()
    except (*USER_ERRORS, RecursionError) as error:
        raise ConfigError(*explain(error)) from error


def compose_config(overrides: list[str], config_dir: str | None) -> Composition:
    """Compose a configuration without checking its values.

    Raises:
        ConfigError: the command line or a file is wrong.
    """
    with reading_configuration(), config_loader(config_dir) as loader:
        parsed = _parse(loader, overrides)
        if several := [line for item in parsed if (line := _several_values(item))]:
            raise ConfigError(*several)
        values = [item for item in parsed if not _chooses(item, loader)]
        chosen = tuple(item.input_line or "" for item in parsed if item not in values)
        files = _files(config_dir)
    config: DictConfig = pickle.loads(_compose_choices(chosen, config_dir, files))
    section = config.pop("hydra")
    # Hydra, too, sets the values last.
    problems = [line for item in values if (line := _apply(item, config))]
    words = [item.input_line or "" for item in parsed if not item.is_hydra_override()]
    section.overrides.task = words
    keys = [override_key(word) for word in words]
    for group in TARGET_GROUPS:
        if f"{group}._target_" in keys:  # without the options of the choice that it replaces
            # Models of Keras' own are named so; other targets there have much the same options.
            _drop_unknown(config, group, keys, unread=group == "model")
    section.runtime.cwd = section.runtime.output_dir = os.getcwd()  # where Hydra would run a job
    # Copying the section would take as long as composing a small configuration.
    hydra_config = DictConfig({}, flags={"no_deepcopy_set_nodes": True})
    hydra_config["hydra"] = section
    return Composition(config, hydra_config, words, problems)


def parse_sweep(overrides: Sequence[str], config_dir: str | None) -> list[Override]:
    """Parse the overrides of a sweep as Hydra does.

    Those that a recipe brings (`hydra.sweeper.params`) come first; the last one of a key wins.

    Raises:
        ConfigError: one is no override.
    """
    with reading_configuration(), config_loader(config_dir) as loader:
        parsed = _parse(loader, overrides)
    recipe = next((item for item in parsed if item.get_key_element() == "experiment"), None)
    if recipe is not None:
        swept = _swept_by(recipe, config_dir)
        with reading_configuration(), config_loader(config_dir) as loader:
            parsed = [*_parse(loader, swept), *parsed]
    return list({item.get_key_element(): item for item in parsed}.values())


@dataclass(frozen=True)
class Composition:
    """A composed configuration, whose values are not checked yet.

    Attributes:
        problems: the overrides that could not be applied, one line each.
    """

    config: DictConfig
    hydra_config: DictConfig
    overrides: list[str]
    problems: Sequence[str]

    @property
    def choices(self) -> dict[str, Any]:
        """The choice in each group."""
        return dict(self.hydra_config.hydra.runtime.choices)

    def container(self) -> dict[str, Any]:
        """Return unresolved, unchecked containers, or raise a ConfigError at a bad override."""
        if self.problems:
            raise ConfigError(*self.problems)
        container: Any = OmegaConf.to_container(self.config)
        return container

    def load(self) -> Experiment:
        """Return the checked experiment, or raise a ConfigError with every problem found."""
        # `${hydra:runtime.choices.model}` and the like are looked up here.
        HydraConfig.instance().cfg = cast(HydraConf, self.hydra_config)
        overrides = [(override_key(item), item.partition("=")[2]) for item in self.overrides]
        return loading.load(self.config, self.choices, overrides, self.problems)


@functools.lru_cache(maxsize=1000)
def _compose_choices(chosen: tuple[str, ...], config_dir: str | None, files: _Files) -> bytes:
    """Return what choices in groups compose to, pickled: a fifth of the time of a deep copy.

    Args:
        files: their states, so that an edited file is read again.
    """
    with reading_configuration(), config_loader(config_dir) as loader:
        config = loader.load_configuration("config", list(chosen), RunMode.RUN)
        # Which keys there are is checked by `_apply` and the schema.
        OmegaConf.set_struct(config, False)
        _drop_replaced(config, chosen, loader)
        add_engine_keys(config)
        pairs = [item.partition("=")[::2] for item in chosen]
        _check_choices([*config.hydra.runtime.choices.items(), *pairs], loader)
    return pickle.dumps(config, pickle.HIGHEST_PROTOCOL)


def _files(config_dir: str | None) -> _Files:
    paths = [
        os.path.join(folder, name)
        for root in (*importlib.import_module("trainer.conf").__path__, *filter(None, [config_dir]))
        for folder, _, names in os.walk(root)
        for name in names
    ]
    states = ((path, os.stat(path)) for path in paths)
    return tuple((path, state.st_mtime_ns, state.st_size) for path, state in states)


def _parse(loader: Any, overrides: Sequence[str]) -> list[Override]:
    # With the loader, so that a glob matches the choices.
    parsed: list[Override] = OverridesParser.create(loader).parse_overrides(list(overrides))
    return parsed


def _chooses(override: Override, loader: Any) -> bool:
    """Return whether an override chooses in a group, or is Hydra's own."""
    is_choice = not isinstance(override.value(), dict)
    return override.is_hydra_override() or (
        is_choice and loader.repository.group_exists(override.key_or_group)
    )


def _several_values(override: Override) -> str | None:
    """Return why an override of a sweep is wrong in one run, or None."""
    if not override.is_sweep_override():
        return None
    line, key = override.input_line or "", override.key_or_group
    is_list = override.value_type is ValueType.SIMPLE_CHOICE_SWEEP and key not in ONE_CHOICE
    as_list = f", or write {key}=[{line.partition('=')[2]}] for a list" if is_list else ""
    return f"'{line}' has several values; add -m to try each{as_list}"


def _swept_by(recipe: Override, config_dir: str | None) -> list[str]:
    names = (
        list(recipe.sweep_string_iterator())
        if recipe.is_sweep_override()
        else [recipe.get_value_element_as_str()]
    )
    for name in names:
        composition = compose_config([f"experiment={name}"], config_dir)
        params = composition.hydra_config.hydra.sweeper.params or {}
        if params and len(names) > 1:
            raise ConfigError(
                f"experiment ({name}) brings what is varied itself ({', '.join(params)}); "
                "choose it alone"
            )
    return [f"{key}={values}" for key, values in params.items()]


def _check_choices(choices: Iterable[tuple[Any, Any]], loader: Any) -> None:
    """Refuse choices outside their groups: runs are named after choices."""
    for place, choice in choices:
        for name in str(choice).strip("[] ").split(","):
            if ".." in (parts := name.strip().split("/")):
                options = loader.get_group_options(str(place).lstrip("+").partition("@")[0])
                raise ConfigError(
                    f"{place}={name}: a choice is a file in its group, not one reached by '..'"
                    f"{did_you_mean(parts[-1], options)}"
                )


def add_engine_keys(config: DictConfig) -> None:
    """Add the engine's keys to the nodes of their groups and of the task, with their defaults."""
    task = config.get("task")
    task_nodes = targets.node_groups(task.get("_target_")) if task else {}
    nodes = [(group, config.get(group)) for group in ("dataset", "optimizer", "schedule")]
    nodes += [(group, task.get(name)) for name, group in task_nodes.items()]
    for group, node in nodes:
        if isinstance(node, DictConfig) and "_target_" in node:
            for name, item in ENGINE_KEYS.get(group, {}).items():
                if name not in node and item.default is not MISSING:
                    node[name] = item.default


def _apply(override: Override, config: DictConfig) -> str | None:
    """Set or delete the key of an override; return what is wrong with it, or None.

    A key without `+` must exist, or be an option of the target of its node.
    """
    key = override.key_or_group
    section, _, last = key.rpartition(".")
    parent = OmegaConf.select(config, section) if section else config
    exists = _has(parent, last)
    if override.package is not None:
        return f"{override.input_line} names no group; write {key}=<value>"
    if override.is_delete():
        if not exists:
            return _unknown_key(key, config)
        if unknown_name(key, loading.plain(Experiment())) is None:
            return f"{key} cannot be removed; write {key}=null"
        del parent[last]
        return None
    value = override.value()
    if override.is_add():
        if exists and parent[last] is not None and not isinstance(value, dict | list):
            return f"{key} exists; write {key}=<value>, without +"
    elif not (exists or override.is_force_add()):
        target = parent.get("_target_") if isinstance(parent, DictConfig) else None
        if not (target and targets.takes(target, last)):
            return _unknown_key(key, config)
    OmegaConf.update(config, key, value, merge=True, force_add=True)
    return None


def _has(node: Any, name: str) -> bool:
    if isinstance(node, ListConfig):
        return name.isdecimal() and int(name) < len(node)
    return isinstance(node, DictConfig) and name in list(node)  # also if it is ???


def _unknown_key(key: str, config: DictConfig) -> str:
    line = unknown_name(key, OmegaConf.to_container(config))  # type: ignore[arg-type]
    return line or f"unknown key '{key}'"


def _drop_replaced(config: DictConfig, overrides: Sequence[str], loader: Any) -> None:
    """Leave out what a recipe sets for other choices than those of the command line.

    `task=hinge` next to a recipe that sets `task.label_smoothing`, for example: Hydra merges that
    option into a task which has none. Only what the new choice does not have is left out: a
    learning rate is any optimizer's.
    """
    recipe = [item for item in overrides if override_key(item) == "experiment"]
    if not recipe or len(recipe) == len(overrides):
        return
    chosen = _target_choices(config)
    alone = _target_choices(loader.load_configuration("config", recipe, RunMode.RUN))
    # From the outside in: a task, then its nodes.
    for name in sorted({*chosen, *alone}, key=len):
        if chosen.get(name) != alone.get(name):
            _drop_unknown(config, section_of(name))


def _drop_unknown(
    config: DictConfig, key: str, kept: Collection[str] = (), *, unread: bool = False
) -> None:
    """Remove the options that the target of a node does not have.

    Args:
        kept: keys that stay, with what is in them.
        unread: whether a target whose source is unreadable has no options.
    """
    node = OmegaConf.select(config, key)
    if not isinstance(node, DictConfig):
        return
    if "_target_" not in list(node):  # of a group in which nothing is chosen
        OmegaConf.update(config, key, None, force_add=True)
        return
    is_read = isinstance(node.get("_target_"), str)
    for name in targets.unknown_options(node, key, unread=unread) if is_read else ():
        if not any(f"{other}.".startswith(f"{key}.{name}.") for other in kept):
            del node[name]


def _target_choices(config: DictConfig) -> Mapping[str, Any]:
    choices = config.hydra.runtime.choices
    groups = {name: name.partition("@")[0].partition("/")[0] for name in choices}
    return {name: choices[name] for name, group in groups.items() if group in TARGET_GROUPS}


class _UserSearchPath(SearchPathPlugin):
    """Has the user's directory searched first.

    Hydra searches its own `--config-dir` last, and so ignores a file there that has the name of
    one of ours.
    """

    directory: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.directory is not None:
            search_path.prepend(
                "--config-dir", f"file://{self.directory}", SearchPathQuery(provider="main")
            )


class FileConfigSource(file_config_source.FileConfigSource):
    """The user's files; one whose aliases multiply its values is refused before it is loaded."""

    # It has the name of Hydra's, which a launcher's job registers again: Hydra compares names.

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.is_file():
            yaml_text.check(path.read_text(encoding="utf-8"), str(path))
        return super().load_config(config_path)


@contextlib.contextmanager
def config_loader(config_dir: str | Path | None) -> Iterator[Any]:
    """Initialize Hydra and yield its config loader.

    Raises:
        ConfigError: it is no directory, or holds what a user cannot replace.
    """
    directory = None if config_dir is None else os.path.abspath(config_dir)
    if directory is not None:
        _check_directory(directory)
    Plugins.instance().register(_UserSearchPath)
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
    previous = _UserSearchPath.directory
    _UserSearchPath.directory = directory
    try:
        with hydra.initialize_config_module(
            "trainer.conf", version_base="1.3", job_name="steadfast"
        ):
            yield GlobalHydra.instance().config_loader()
    finally:
        _UserSearchPath.directory = previous


def complete(words: list[str], config_dir: str | None) -> None:
    """Do what `--shell-completion` requests: `install=bash`, `uninstall=bash`, `query=bash`."""
    with reading_configuration(), config_loader(config_dir):
        application = GlobalHydra.instance().hydra
        assert application is not None
        application.shell_completion("config", words)


def _check_directory(directory: str) -> None:
    if not os.path.isdir(directory):
        raise ConfigError(f"--config-dir ({directory}): no such directory")
    for name in OURS:
        if os.path.exists(os.path.join(directory, name)):
            raise ConfigError(
                f"--config-dir ({directory}): {name} is a name of ours; put choices in files such "
                "as model/mine.yaml, and values that belong together in experiment/mine.yaml"
            )
