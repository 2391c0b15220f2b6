"""The command `completion <shell>`: prints the script with which a shell completes our commands.

The script calls `completion query <word> ...` with the words up to the cursor, and reads the
completions of the last one, one a line. No TensorFlow.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from trainer.annotations import OneOf, Rule
from trainer.cli.arguments import CFG, FLAGS
from trainer.cli.choices import Choices
from trainer.cli.command_table import COMMANDS
from trainer.cli.commands.command_arguments import Parser
from trainer.cli.commands.help import ALL
from trainer.cli.compose import compose_config
from trainer.cli.error_messages import USER_ERRORS
from trainer.cli.overrides import found_directory, rewrite
from trainer.config.loading import value_at
from trainer.config.schema import Experiment
from trainer.errors import DONE, ConfigError
from trainer.text import did_you_mean

_QUERY = "query"
_RUN_KEYS = ("resume", "init_from")
"""Keys whose value is a run directory."""
_SHELLS = ("bash", "zsh", "fish")
_SCRIPTS = importlib.resources.files(__package__).joinpath("shells")


def run(arguments: Sequence[str]) -> int:
    """Print the script of a shell, or the completions that a script asks for."""
    if arguments[:1] == [_QUERY]:
        commands = {**dict.fromkeys(COMMANDS, ()), "completion": _SHELLS}
        for word in completions(arguments[1:], commands):
            if word.isprintable():  # it would become a part of the command line
                print(word)
        return DONE
    usage = (
        'bash and zsh: eval "$(steadfast completion bash)"; '
        "fish: steadfast completion fish | source"
    )
    parser = Parser("completion", usage)
    parser.add_argument("shell", help=", ".join(_SHELLS))
    shell = parser.parse_args(arguments).shell
    if shell not in _SHELLS:
        hint = did_you_mean(shell, _SHELLS)
        raise ConfigError(f"completion ({shell}) must be one of {', '.join(_SHELLS)}{hint}")
    print(script(shell, Path(sys.argv[0])), end="")
    return DONE


def script(shell: str, program: Path) -> str:
    """Return the script for bash, zsh or fish; `program` is the installed command or train.py."""
    # In a checkout the scripts complete `python`, but only if its first argument is our train.py.
    is_checkout = program.suffix == ".py"
    names = ("python", "python3") if is_checkout else (program.name,)
    text = _SCRIPTS.joinpath(f"completion.{shell}").read_text(encoding="utf-8")
    marked = r"^@CHECKOUT " if is_checkout else r"^@CHECKOUT .*\n"
    text = re.sub(marked, "", text, flags=re.MULTILINE)
    text = text.replace("@FILE@", shlex.quote(os.path.abspath(program)))
    text = text.replace("@SKIP@", "2" if is_checkout else "1").replace("@NAMES@", " ".join(names))
    if shell != "fish":
        return text
    condition = "-n __steadfast_is_ours " if is_checkout else ""
    return text + "".join(
        f"complete -c {name} {condition}-f -a '(__steadfast_complete)'\n" for name in names
    )


def completions(words: Sequence[str], commands: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the completions of the last word, sorted.

    It is empty for a path, which the shell completes.

    Args:
        words: the words after the program's name up to the cursor; the last one may be empty.
        commands: what may be the first word, each with the words that may follow it.
    """
    *before, word = words or [""]
    is_topic = before[:1] == ["help"]
    if before and before[0] in commands and not is_topic:
        return _starting(word, commands[before[0]])
    if before and before[-1] in ("--cfg", "-c"):
        return _starting(word, [CFG])
    if word.startswith("-"):
        return _starting(word, FLAGS)
    config_dir = _config_dir(before)
    if "=" in word:
        key, _, value = word.partition("=")
        return _values(key, value, before, config_dir)
    marks = word[: len(word) - len(word.lstrip("+~"))]
    names = _names(word.lstrip("+~"), before, config_dir)
    if is_topic:
        return _starting(word, [ALL, *commands, *(name.rstrip("=.") for name in names)])
    return _starting(word, [*(marks + name for name in names), *([] if before else commands)])


def _values(key: str, value: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Complete a value; of several, `a,b` or `[a,b`, the last."""
    typed = value[: max(value.rfind(","), value.rfind("[")) + 1]
    name = key.lstrip("+~")
    if name.partition("@")[0].partition("/")[0] in (choices := Choices(config_dir, {})).groups():
        values: Iterable[str] = choices.of(name)
    elif name in _RUN_KEYS:
        runs = [str(path.parent) for path in Path(Experiment().runs_dir).glob("*/config.yaml")]
        values = [*(["auto", "never"] if name == "resume" else []), *runs]
    else:
        values = _key_values(name, before, config_dir)
    return _starting(f"{key}={value}", [f"{key}={typed}{item}" for item in values])


def _key_values(name: str, before: Sequence[str], config_dir: str | None) -> Sequence[str]:
    """Return the words that the schema allows, true and false, or the present value."""
    choices = [rule for rule in _rules(name) if isinstance(rule, OneOf)]
    if choices:
        return choices[0].words
    node = value_at(_composed(before, config_dir)[0], name)
    if isinstance(node, bool):
        return ["false", "true"]
    return [] if node is None or isinstance(node, Mapping | list) else [str(node)]


def _rules(key: str) -> tuple[Rule, ...]:
    schema: Any = Experiment
    item: Field[Any] | None = None
    for part in key.split("."):
        names = {item.name: item for item in fields(schema)} if is_dataclass(schema) else {}
        item = names.get(part)
        schema = item and item.default_factory
    return item.metadata["rules"] if item else ()


def _names(word: str, before: Sequence[str], config_dir: str | None) -> list[str]:
    """Return keys and groups down to the next dot: `optimizer=` and `optimizer.`."""
    node: Any
    node, chosen = _composed(before, config_dir)
    places = [f"{group}@{place}=" for place, group in Choices(config_dir, chosen).places().items()]
    if "@" in word:
        return places
    parent = word.rpartition(".")[0]
    node = value_at(node, parent) if parent else node
    if not isinstance(node, Mapping):
        return []
    path = f"{parent}." if parent else ""
    groups = Choices(config_dir, {}).groups() if not parent else []
    names = [
        name for name in node if not str(name).startswith("_") and name not in ("choices", *groups)
    ]
    keys = [f"{path}{name}{'.' if isinstance(node[name], Mapping) else '='}" for name in names]
    return [
        *keys,
        *(places if not parent else []),
        *(f"{group}=" for group in groups),
        *(f"{group}." for group in groups if node.get(group)),
    ]


def _composed(
    before: Sequence[str], config_dir: str | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Compose the words before, if need be without those that are incomplete or a sweep.

    Returns:
        The configuration, and the choice in each group.
    """
    words = [word for word in before if "=" in word and not word.startswith("-")]
    single = [word for word in words if not any(mark in word for mark in ",(")]
    for overrides in (words, single, []):
        try:
            composition = compose_config(*rewrite(overrides, config_dir))
            return composition.container(), composition.choices
        except (*USER_ERRORS, RecursionError):
            continue
    return {}, {}


def _config_dir(before: Sequence[str]) -> str | None:
    directory = None
    for index, word in enumerate(before):
        if word.startswith("--config-dir="):
            directory = word.partition("=")[2]
        elif word in ("--config-dir", "-cd") and index + 1 < len(before):
            directory = before[index + 1]
    if directory is None:
        return found_directory()
    path = Path(directory).expanduser()
    return str(path.absolute()) if directory and path.is_dir() else None


def _starting(word: str, candidates: Iterable[str]) -> list[str]:
    return sorted({item for item in candidates if item.startswith(word)})
