"""No file of a run but config.yaml, no request to a tracker and no output has a secret."""

import subprocess

import pytest

from tests.support.command_line import Outcome, run_here
from tests.support.http_servers import mlflow_server
from tests.support.processes import finish, only_run, run, start

SECRETS = {
    "option": "abcdefghijklm", "short": "hunter2", "section": "zq7w8", "item": "s3cr3ts",
    "password": "pw91x", "url": "db-pass-5", "form": "hf_" + "aB" * 17, "later": "nextone",
    "written": "in-a-diff", "quoted": "said-so",
}  # fmt: skip
"""Where each is."""
PROJECT = """
from trainer.datasets.digits import digits

class Notify:
    every = 2
    password = "said-so"

    def __init__(self, *, api_key, secret, url, note, headers):
        self.values = api_key, secret, url, note, headers

    def on_step(self, training):
        pass

def data(*, password, **options):
    return digits(**options)
"""
OPTIONS = [
    "model=softmax", "batch.global_size=16", "checkpoint.every_steps=2",
    "writers=[tensorboard,jsonl,mlflow,wandb]", "dataset._target_=project.data",
    "+dataset.password=pw91x", "+callbacks.mine._target_=project.Notify",
    "+callbacks.mine.secret=hunter2", "+callbacks.mine.url=https://me:db-pass-5@host/db",
    f"+callbacks.mine.note={SECRETS['form']}",
    "+callbacks.mine.headers={secrets:{first:zq7w8,all:[s3cr3ts]},retries:3}",
]  # fmt: skip


def found(content):
    return [place for place, secret in SECRETS.items() if secret.encode() in content]


@pytest.mark.slow
def test_only_the_configuration_has_secrets(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    (tmp_path / "project.py").write_text(PROJECT.replace("said-so", "before"))
    (tmp_path / "keys.ini").write_text("secret=none\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "project.py").write_text(PROJECT)
    (tmp_path / "keys.ini").write_text("secret=in-a-diff\n")
    with mlflow_server() as (address, requests):
        env = {"MLFLOW_TRACKING_URI": address}
        first = [*OPTIONS, "+callbacks.mine.api_key=abcdefghijklm", "train.steps=2"]
        outputs = [Outcome(*finish(start(tmp_path, *first, **env)))]
        run_dir = only_run(tmp_path)
        more = [f"resume={run_dir}", "resume_allow=[callbacks.mine.api_key]", *OPTIONS[5:]]
        more += ["+callbacks.mine.api_key=nextone", "train.steps=4"]
        outputs += [Outcome(*finish(start(tmp_path, *more, **env)))]
    outputs += [Outcome(*run(tmp_path, "mode=export", *more))]
    monkeypatch.chdir(tmp_path)
    outputs += [run_here(*more), run_here("report", str(run_dir)), run_here("runs", "--json")]
    assert [outcome.code for outcome in outputs] == [0] * 6, outputs
    assert "Already finished" in outputs[3].out

    assert not found("".join(outcome.out + outcome.err for outcome in outputs).encode())
    config = run_dir / "config.yaml"
    assert {*found(config.read_bytes())} == {*SECRETS} - {"later", "written", "quoted"}
    assert config.stat().st_mode & 0o777 == 0o600
    files = [file for file in (*run_dir.rglob("*"), tmp_path / "report.html") if file.is_file()]
    kinds = {file.suffix for file in files}
    assert {".wandb", ".jsonl", ".hparams", ".log", ".md", ".html"} <= kinds
    with_secrets = {file: places for file in files if (places := found(file.read_bytes()))}
    assert with_secrets.keys() == {config}, with_secrets

    logged = b"\n".join(requests)
    assert b"callbacks.mine.api_key" in logged
    assert b"callbacks.mine.headers.retries" in logged
    assert not found(logged)
