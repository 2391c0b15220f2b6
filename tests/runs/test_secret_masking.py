"""What of a text looks like a secret, and what does not."""

import pytest

from trainer.cli.compose import compose
from trainer.runs.identity import Change, leaves
from trainer.runs.secret_masking import MASK, masked, shown, shown_word

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
        ("https://me:p@w@host/a", f"https://{MASK}@host/a"),
        ("secret=hunter2", f"secret={MASK}"),
        ("api_key=abcdefghijklm", f"api_key={MASK}"),
        ("+api_key: abc def", f"+api_key: {MASK}"),
        ("Authorization: Bearer abc.def", f"Authorization: {MASK}"),
        ("AccountKey=ab==;Server=x", f"AccountKey={MASK}"),
        ("+a={_target_:x,api_key:k,n:1}", f"+a={{_target_:x,api_key:{MASK},n:1}}"),
        ("+a={secrets:{b:k1,c:[k2,{d:k3}]},n:1}", f"+a={{secrets:{MASK},n:1}}"),
        ("https://host/a?sig=abc&n=1", f"https://host/a?sig={MASK}&n=1"),
    ],
)
def test_secrets_are_masked(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "model=cnn optimizer.learning_rate=0.1 seed=12345678",
        "+    token = tokenizer.encode(text)",
        "task.max_tokens=1024 model.num_tokens=50257000 model.max_token=3 token=null",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "runs_dir=s3://bucket/folder dataset.path=https://host:8080/a.npz",
        "secret_sharing(password)",
        "+    pad_token='[PAD]', eos_token=\"<eos>\", mask_token=<extra_id_0>",
        "-def risk-of-a-long-name-with-dashes():",
    ],
)
def test_what_is_no_secret_is_kept(text):
    assert masked(text) == text


def test_configuration_is_shown_without_secrets_of_any_length():
    callback = {
        "_target_": "a.Notify", "api_key": "k", "token": 12, "retries": 3, "url": "ftp://u:p@h/",
        "client": {"secret": "x", "id": "me"}, "credentials": {"user": "me", "all": ["x"]},
        "password": None, "auth": "", "headers": [{"Authorization": "x"}, "hf_" + "aB" * 17],
        "end_token": 5, "use_token": True,
    }  # fmt: skip
    expected = {
        **callback, "api_key": MASK, "token": MASK, "url": f"ftp://{MASK}@h/",
        "client": {"secret": MASK, "id": "me"}, "credentials": {"user": MASK, "all": MASK},
        "headers": [{"Authorization": MASK}, MASK],
    }  # fmt: skip
    assert shown({"callbacks": {"mine": callback}}) == {"callbacks": {"mine": expected}}
    assert shown({"callbacks.mine.client.secret": 1}) == {"callbacks.mine.client.secret": MASK}
    change = Change("dataset.password", "before1", "now1")
    assert (change.shown, str(change)) == ((MASK, MASK), f"dataset.password: '{MASK}' -> '{MASK}'")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("+callbacks.mine.api_key='two words'", f"+callbacks.mine.api_key={MASK}"),
        ("++dataset.password=a,b", f"++dataset.password={MASK}"),
        ("callbacks.mine.secrets.first=(x", f"callbacks.mine.secrets.first={MASK}"),
        ("dataset.token=null", "dataset.token=null"),
        ("model=cnn", "model=cnn"),
    ],
)
def test_override_is_recorded_without_its_secret(word, expected):
    assert shown_word(word) == expected


def test_no_option_of_ours_is_taken_for_a_secret():
    words = ["dataset=text_windows", "model=transformer", "task=language_model"]
    for overrides in ([], words, ["callbacks=early_stopping", "strategy=multi_worker"]):
        values = leaves(compose(overrides))
        assert shown(values) == values
