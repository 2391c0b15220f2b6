"""The command `completion <shell>`: prints the script with which a shell completes our commands.

The script calls `completion query <word> ...` with the words up to the cursor, and reads the
completions of the last one, one a line. No TensorFlow.
"""

from __future__ import annotations

import os
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

# In a checkout the scripts complete `python`, but only if its first argument is our train.py.
_BASH = """\
_steadfast() {
    local line="${COMP_LINE:0:$COMP_POINT}" words found typed marks
    read -ra words <<< "$line"
    case "$line" in *[[:space:]]) words+=("") ;; esac
    words[0]="${words[0]/#\\~/$HOME}"
@GUARD@    # Bash replaces what follows the last `=` or `@`, if these are word breaks.
    typed="${words[${#words[@]} - 1]}" marks="${COMP_WORDBREAKS//[^=@]/}"
    typed="${typed%"${typed##*[${marks:- }]}"}"
    while IFS= read -r found; do
        case "$found" in *[=.]) ;; *) found="$found " ;; esac
        COMPREPLY+=("${found#"$typed"}")
    done < <("${words[@]:0:@SKIP@}" completion query "${words[@]:@SKIP@}" 2> /dev/null)
}
complete -o nospace -o default -F _steadfast @NAMES@
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_steadfast() {
    local -a found
    local place=@SKIP@
@GUARD@    found=(${(f)"$("${(@Q)words[1,place]}" completion query "${(@Q)words[place+1,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)"})
    if (( ${#found} )); then
        compadd -S '' -- ${(M)found:#*[=.]}
        compadd -- ${found:#*[=.]}
    else
        compset -P '*='
        _files
    fi
}
compdef _steadfast @NAMES@
"""  # noqa: E501
_FISH = """\
@GUARD@function __steadfast_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l program $words[1..@SKIP@]
    set -e words[1..@SKIP@]
    set -l found (command $program completion query $words "$typed" 2> /dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        set -l key (string match -r -- '^.*=' "$typed")
        for path in (__fish_complete_path (string replace -r -- '^.*=' '' "$typed"))
            echo "$key$path"
        end
    end
end
"""
_GUARDS = {
    "bash": '    [[ "${words[1]}" -ef @FILE@ ]] || return\n',
    "zsh": '    [[ "${(Q)words[2]}" -ef @FILE@ ]] || { _files; return }\n',
    "fish": """\
function __steadfast_is_ours
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test (realpath -- $words[2]) = (realpath -- @FILE@)
end
""",
}
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(arguments: Sequence[str]) -> int:
    """Print the script of a shell, or the completions that a script asks for.

    Raises:
        ConfigError: there is no such shell.
    """
    if arguments[:1] == [_QUERY]:
        commands = {**dict.fromkeys(COMMANDS, ()), "completion": tuple(_SCRIPTS)}
        for word in word_completion.completions(arguments[1:], commands):
            if word.isprintable():  # it would become a part of the command line
                print(word)
        return DONE
    usage = (
        'bash and zsh: eval "$(steadfast completion bash)"; '
        "fish: steadfast completion fish | source"
    )
    parser = Parser("completion", usage)
    parser.add_argument("shell", help=", ".join(_SCRIPTS))
    shell = parser.parse_args(arguments).shell
    if shell not in _SCRIPTS:
        hint = did_you_mean(shell, _SCRIPTS)
        raise ConfigError(f"completion ({shell}) must be one of {', '.join(_SCRIPTS)}{hint}")
    print(script(shell, Path(sys.argv[0])), end="")
    return DONE


def script(shell: str, program: Path) -> str:
    """Return the script that a shell has to evaluate.

    Args:
        shell: bash, zsh or fish.
        program: the program that was called: the installed command, or train.py in a checkout.
    """
    names: tuple[str, ...]
    if program.suffix == ".py":
        names = ("python", "python3")
        skip = "2"
        guard = _GUARDS[shell]
    else:
        names = (program.name,)
        skip = "1"
        guard = ""
    text = (
        _SCRIPTS[shell]
        .replace("@GUARD@", guard)
        .replace("@FILE@", shlex.quote(os.path.abspath(program)))
    )
    text = text.replace("@SKIP@", skip).replace("@NAMES@", " ".join(names))
    condition = "-n __steadfast_is_ours " if guard else ""
    return text + "".join(
        f"complete -c {name} {condition}-f -a '(__steadfast_complete)'\n"
        for name in names
        if shell == "fish"
    )
