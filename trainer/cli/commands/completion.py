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
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import word_completion
from trainer.cli.command_table import COMMANDS
from trainer.cli.commands.command_arguments import Parser
from trainer.config.options.constraints import did_you_mean
from trainer.errors import DONE, ConfigError

_QUERY = "query"

_SHELLS = ("bash", "zsh", "fish")
_SCRIPTS = importlib.resources.files(__package__).joinpath("shells")


def run(arguments: Sequence[str]) -> int:
    """Print the script of a shell, or the completions that a script asks for.

    Raises:
        ConfigError: there is no such shell.
    """
    if arguments[:1] == [_QUERY]:
        commands = {**dict.fromkeys(COMMANDS, ()), "completion": _SHELLS}
        for word in word_completion.completions(arguments[1:], commands):
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
    """Return the script that a shell has to evaluate.

    Args:
        shell: bash, zsh or fish.
        program: the program that was called: the installed command, or train.py in a checkout.
    """
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
