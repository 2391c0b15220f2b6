"""Completion: of a word, and through the script of each shell."""

import shlex
import shutil
import subprocess
import sys

import pytest

from tests.support.choices import GAN_CONF as CONF
from tests.support.command_line import ROOT
from trainer.cli.commands.completion import completions

OWN = ROOT / "docs" / "examples" / "own_project" / "conf"
TOY = f"--config-dir={CONF} task=toy_gan"
COMMANDS = {"help": (), "runs": (), "completion": ("bash", "fish")}

COMPLETIONS = {
    "mod": "mode= model. model=",
    "--c": "--cfg --config-dir",
    "ru": "runs runs_dir=",
    "completion b": "bash",
    "help r": "record restart resume resume_allow runs runs_dir",
    "help optimizer=sgd optimizer.n": "optimizer.nesterov",
    # Choices: one, one of several, in a list.
    "model=m": "model=mlp model=mobilenet",
    "-m model=cnn,so": "model=cnn,softmax",
    "callbacks=[ear": "callbacks=[early_stopping",
    # Keys: those of the choices that were made.
    "optimizer.la": "optimizer.layer_decay= optimizer.lazy=",
    "callbacks=early_stopping callbacks.early_stopping.p": "callbacks.early_stopping.patience=",
    # What stands before may be half done, or a sweep.
    "model=mobilnet seed=x train.ep": "train.epochs=",
    "-m optimizer=sgd seed=1,2 optimizer.n": "optimizer.nesterov=",
    # Values.
    "precision=": "precision=float32 precision=mixed_bfloat16 precision=mixed_float16",
    "train.steps_per_loop=": "train.steps_per_loop=auto",
    "optimizer.learning_rate=": "optimizer.learning_rate=0.001",
    "dataset=mnist dataset.path=": "",
    # A node of a task.
    f"{TOY} model@": "model@task.discriminator= model@task.generator=",
    f"{TOY} model@task.generator=toy_g": "model@task.generator=toy_generator",
    f"{TOY} task.generator.w": "task.generator.width=",
    # A user's own.
    f"--config-dir={OWN} dataset=w": "dataset=waves",
    f"--config-dir {OWN} model=listener model.": "model.filters= model.pooling=",
    "--config-dir=/no/where model=m": "model=mlp model=mobilenet",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", COMPLETIONS)
def test_completions_of_a_word(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert completions(line.split(" "), COMMANDS) == COMPLETIONS[line].split()


def test_resume_and_init_from_complete_runs(tmp_path, monkeypatch):
    for name in ("runs/cnn-digits-1", "runs/cnn-digits-2"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert completions(["resume="], {}) == [
        "resume=auto",
        "resume=never",
        "resume=runs/cnn-digits-1",
        "resume=runs/cnn-digits-2",
    ]
    assert completions(["init_from=runs/cnn-digits-2"], {}) == ["init_from=runs/cnn-digits-2"]


def shell(name, load, text, cwd):
    """Load our script and then run `text` in a shell; return the lines it prints."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    plain = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    command = [name, *plain, "-c", f"{load}\n{text}"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(cwd.iterdir())
    return done.stdout.splitlines()


PROGRAM = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'train.py'))}"


SHELL_COMPLETIONS = {
    "mod": ["mode=", "model.", "model="],
    "model=mob": ["mobilenet "],
    "checkpoint.best.mode=": ["auto ", "max ", "min "],
}
ASK = (
    'ask() { COMP_LINE="$1"; COMP_POINT=$2; COMPREPLY=(); _steadfast; printf "<%s>" '
    '"${COMPREPLY[@]}"; echo; }'
)


def replies(*candidates):
    return "".join(f"<{item}>" for item in candidates or [""])


@pytest.mark.slow
def test_bash_script_completes_up_to_the_cursor_and_for_our_program_alone(tmp_path):
    asked = [f"ask '{PROGRAM} {line}' 200" for line in SHELL_COMPLETIONS]
    text = f"""
{ASK}
complete -p python
ask "{sys.executable} other.py mod" 200
ask "{PROGRAM} model=mobxxx" {len(PROGRAM) + len(" model=mob")}
COMP_WORDBREAKS="${{COMP_WORDBREAKS//=}}"
ask "{PROGRAM} model=mob" 200
"""
    load = f'eval "$({PROGRAM} completion bash)"'
    assert shell("bash", load, "\n".join([ASK, *asked, text]), tmp_path) == [
        *(replies(*words) for words in SHELL_COMPLETIONS.values()),
        "complete -o default -o nospace -F _steadfast python",
        replies(),
        replies("mobilenet "),
        replies("model=mobilenet "),
    ]


def test_zsh_script_completes(tmp_path):
    text = f"""
compadd() {{ print -rl -- "${{@:#-*}}" }}
_files() {{ print files }}
compset() {{ true }}
ask() {{ words=({PROGRAM} "$@"); CURRENT=${{#words}}; PREFIX=$words[-1]; _steadfast }}
ask model=mob
ask optimizer=sgd optimizer.n
ask dataset.path=/x
"""
    load = f'eval "$({PROGRAM} completion zsh)"'
    printed = shell("zsh", load, f"compdef() {{ }}\n{text}", tmp_path)
    assert list(filter(None, printed)) == ["model=mobilenet", "optimizer.nesterov=", "files"]


def test_fish_script_completes(tmp_path):
    asked = f"complete -C '{PROGRAM} optimizer=sgd optimizer.n'"
    load = f"{PROGRAM} completion fish | source"
    assert shell("fish", load, asked, tmp_path) == ["optimizer.nesterov="]
