"""What of a text looks like a secret, and what does not."""

import pytest

from trainer.runs.secret_masking import MASK, masked

PEM = "-----BEGIN RSA PRIVATE KEY-----\n+MIIEow\n+IBAAK\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"key = '''{PEM}'''", f"key = '''{MASK}'''"),
        (PEM.partition("+IB")[0], MASK),  # cut
        ("id AKIAIOSFODNN7EXAMPLE.", f"id {MASK}."),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPx", f"AWS_SECRET_ACCESS_KEY={MASK}"),
        ("ghp_" + "a1" * 18, MASK),
        ("+HF = 'hf_" + "aB" * 17 + "'", f"+HF = '{MASK}'"),
        ("WANDB_API_KEY=" + "0a" * 20, f"WANDB_API_KEY={MASK}"),
        ("wandb login " + "0a" * 20, f"wandb login {MASK}"),
        ("dataset.password=correct", f"dataset.password={MASK}"),
        ('+password = "correct horse"', f'+password = "{MASK}"'),
        ("--token abcdef1234", f"--token {MASK}"),
        ('{"secret": "abcd1234"}', f'{{"secret": "{MASK}"}}'),
        ("dataset.path=https://me:pw@host/a.zip", f"dataset.path=https://{MASK}@host/a.zip"),
    ],
)
def test_secrets_are_masked(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "model=cnn optimizer.learning_rate=0.1 seed=12345678",
        "+    token = tokenizer.encode(text)",
        "task.max_tokens=1024 model.num_tokens=50257000",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "runs_dir=s3://bucket/folder dataset.path=https://host:8080/a.npz",
        "secret_sharing(password)",
        "+    pad_token='[PAD]', eos_token=\"<eos>\", mask_token=<extra_id_0>",
        "-def risk-of-a-long-name-with-dashes():",
    ],
)
def test_what_is_no_secret_is_kept(text):
    assert masked(text) == text
