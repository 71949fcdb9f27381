"""What looks like a secret is hidden wherever it stands, and nothing else is."""

import base64
import html
import json
import re
import shlex
import string
from urllib.parse import quote, quote_plus

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from runcatalog.record.provenance.redact import (
    HIDDEN,
    Redactor,
    allowed,
    guild_secrets,
    is_secret_name,
)

LETTERS = string.ascii_letters + string.digits
VALUES = st.text(LETTERS + "+/=_-!$%&*'\"\\ é", min_size=8, max_size=40).filter(
    lambda v: any(c.isalpha() for c in v) and v.strip() == v and not v.startswith("/")
)


@pytest.mark.parametrize("number", ["2.718281828", "-0.12345678", "1.2345678e-05", "12345678.9"])
def test_a_number_after_the_word_token_is_no_secret(number):
    text = f"validation loss per token: {number}, token = {number}."
    assert Redactor([]).text(text) == text
    for secret in (f"{number}x", "hunter2hunter2", "123456789012"):
        assert secret not in Redactor([]).text(f"token: {secret}")


@given(
    name=st.sampled_from(["HF_TOKEN", "DB_PASSWORD", "WANDB_API_KEY", "githubToken", "SENTRY_DSN"]),
    value=VALUES,
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_the_value_of_a_secret_variable_is_nowhere(name, value, before, after):
    redactor = Redactor([{name: value}])
    assert value not in redactor.text(f"{before}{value}{after}").replace(HIDDEN, "\0")
    redacted = redactor.value({"a": [f"x {value}"], value: 1})
    assert value not in str(redacted).replace(HIDDEN, "\0")


ENCODINGS = {
    "URL": lambda v: quote(v, safe=""),
    "URL in lower case": lambda v: re.sub("%..", lambda m: m[0].lower(), quote(v, safe="")),
    "URL with slashes": quote,
    "form": quote_plus,
    "HTML": html.escape,
    "HTML by number": lambda v: (
        html.escape(v).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    ),
    "HTML text": lambda v: html.escape(v, quote=False),
    "JSON": json.dumps,
    "JSON in JSON": lambda v: json.dumps(json.dumps(v)),
    "JSON without escapes": lambda v: json.dumps(v, ensure_ascii=False),
    "Python": repr,
    "shell": shlex.quote,
    "hex": lambda v: v.encode().hex(),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 after one byte": lambda v: base64.b64encode(b":" + v.encode()).decode(),
    "base64 after a name": lambda v: base64.b64encode(b"ann.e:" + v.encode() + b"@host").decode(),
    "base64 after two bytes": lambda v: base64.b64encode(b"me" + v.encode()).decode(),
    "base64 of a URL": lambda v: base64.urlsafe_b64encode(v.encode()).decode().rstrip("="),
}


@given(
    value=VALUES | st.from_regex("[0-9]{8,12}", fullmatch=True),
    way=st.sampled_from(sorted(ENCODINGS)),
)
def test_the_value_of_a_secret_variable_is_nowhere_encoded_either(value, way):
    encoded = ENCODINGS[way](value)
    clean = Redactor([{"SERVICE_PASSWORD": value}]).known(f"sent {encoded} off")
    assert clean.startswith("sent ")
    assert clean.endswith(" off")
    assert value not in clean
    assert encoded.strip("'\"\\") not in clean
    if way.startswith("base64"):  # after the part of it that is the name before the password
        assert not any(encoded[at : at + 6] in clean for at in range(8, len(encoded) - 5))


@pytest.mark.parametrize(
    "value", ["1234567890", "0048151623", "/S3cr.et/9x", "/S3cret", "s3cr", "ab!", "p w"]
)
def test_numbers_paths_and_short_values_are_hidden_as_words(value):
    redactor = Redactor([{"DB_PASS": value}])
    assert redactor.known(f"login with {value}: refused") == f"login with {HIDDEN}: refused"
    assert redactor.text(f"({value})") == f"({HIDDEN})"
    assert redactor.value({"w": value}) == {"w": HIDDEN}
    if not value.startswith("/"):
        assert redactor.text(f"x{value}y") == f"x{value}y"


def test_a_number_of_few_digits_is_hidden_in_sentences_and_nowhere_else():
    """A PIN that is also the number of a step, of a seed and of levels."""
    redactor = Redactor([{"SECRET_PIN": "4711"}])
    for sentence in ("the PIN 4711 is wrong", "pin=4711", "--pin 4711", "4711: access denied"):
        assert "4711" not in redactor.text(sentence)
    for text in (
        *("update 4711 of 9000", "python t.py --seed 4711 --lr 0.1", "lr=0.1 seed=4711", "4711"),
        *("after 4711 updates", "in 4711 levels", "loss 0.4711", "14711", "4711.5", "step: 4711"),
    ):
        assert redactor.text(text) == text
        assert redactor.known(text) == text
    result = {"at": 4711, "value": 4711.0, "table": {"rows": [["4711", "0.5"]]}}
    assert redactor.value(result) == result
    assert redactor.known("4711,0.5\n") == "4711,0.5\n"
    assert redactor.name("loss/4711") == "loss/4711"


def test_names_of_metrics_and_artifacts_are_hidden():
    redactor = Redactor([{"A_TOKEN": "plain-secret"}])
    assert redactor.name("rate/plain-secret") == "rate/hidden"
    assert redactor.name("figures/plain-secret.svg") == "figures/hidden.svg"
    assert redactor.name("loss/per_token: a") == "loss/per_token: a"


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a1B2" * 9,
        "hf_" + "aB3d" * 9,
        "AKIA" + "ABCD1234" * 2,
        "sk-proj-" + "x9" * 15,
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_known_forms_of_secrets_are_hidden_everywhere(secret):
    shown = Redactor().text(f"before {secret} after")
    assert shown == f"before {HIDDEN} after"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://me:pw@db/mlflow", f"postgresql://{HIDDEN}@db/mlflow"),
        ("Authorization: Bearer abcdefghijklmnop", f"Authorization: Bearer {HIDDEN}"),
        ("python t.py --api-key abc --lr 1e-3", f"python t.py --api-key {HIDDEN} --lr 1e-3"),
        ("password = hunter2hunter2", f"password = {HIDDEN}"),
        ("postgresql://me:pa/ss@db/mlflow", f"postgresql://{HIDDEN}@db/mlflow"),
        ("postgresql://me:p@ss@db:5432/x", f"postgresql://{HIDDEN}@db:5432/x"),
        ("redis://:pw@db", f"redis://{HIDDEN}@db"),
        ("git clone https://0a1b2c3d4e@host/x.git", f"git clone https://{HIDDEN}@host/x.git"),
        ("git+https://sometoken@host/x", f"git+https://{HIDDEN}@host/x"),
        ("https://key@o1.ingest.example/2", f"https://{HIDDEN}@o1.ingest.example/2"),
        ('{"hub_token": "abcdefgh"}', f'{{"hub_token": "{HIDDEN}"}}'),
    ],
)
def test_what_is_called_a_secret_is_hidden(text, clean):
    assert Redactor().text(text) == clean
    assert Redactor().text(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "lr=0.005 task=lever tokens=12345678901",
        "key=key_to_door pass_rate: 0.93 tokenizer=Qwen2TokenizerFast",
        "gradient explosion at update 12: critic.weights",
        "sqlite:////data/mlflow.db http://host:5000/#/experiments/1",
        "Traceback: File '/a/b.py', line 3, in forward_pass",
        "sha256 " + "0123456789abcdef" * 4,
        "ssh://git@github.com/a/b https://git@host/c http://host:5000/a@b docker://image@sha256:0a",
        "https://{token}@host https://$USER:$PASSWORD@host https://<token>@host",
        "context of 4096 tokens, 3600 s, in /home/me/secrets and /usr: test root of 3 admins",
        "https://host/search?mail=me@host",
    ],
)
def test_ordinary_text_stays(text):
    environment = {
        "SSH_AUTH_SOCK": "/tmp/agent", "KEYS": "12", "PIN": "true", "LANG": "update", "MAX_TOKENS": "4096",
        "TOKEN_TTL": "3600", "SECRETS_DIR": "/home/me/secrets", "API_KEY": "/usr", "DB_PASSWORD": "test",
        "ROOT_PASSWORD": "root", "TOKEN_DROPOUT": "0.93", "A_SECRET": "3",
    }  # fmt: skip
    assert Redactor([environment]).text(text) == text
    assert not Redactor([environment]).contains_secret(text)


def test_flags_are_judged_by_their_name():
    assert [is_secret_name(n) for n in ("hub-token", "apiKey", "key", "max_tokens")] == [1, 1, 0, 0]
    assert Redactor().flag("hub_token", "x") == HIDDEN
    assert Redactor().flag("hub_token", "") == ""
    assert Redactor().flag("key", "yellow") == "yellow"


def test_of_an_environment_only_what_can_change_a_run_is_published():
    environment = {"OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl", "HOME": "/home/me", "MY_TOKEN": "t"}
    assert allowed(environment) == {"OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl"}


def test_guilds_copy_of_the_environment_is_read_as_text(tmp_path):
    attrs = tmp_path / ".guild" / "attrs"
    attrs.mkdir(parents=True)
    environment = {
        "A_TOKEN": "0123456789",
        "B": "x\ny",
        "C_PASSWORD": "line one\n two: 'three'",
        "D_KEY": "1e3",
    }
    (attrs / "env").write_text(yaml.safe_dump(environment))
    assert guild_secrets(tmp_path) == {n: v for n, v in environment.items() if n != "B"}
    for broken in ("{", "- a", "A_TOKEN: &a [b]\nB_TOKEN: *a\n", "\0", "A_TOKEN: {b: c}\n"):
        (attrs / "env").write_text(broken)
        assert guild_secrets(tmp_path) == {}
    assert guild_secrets(tmp_path / "nowhere") == {}


def test_a_file_is_changed_only_if_it_contains_a_secret(tmp_path):
    redactor = Redactor([{"A_TOKEN": "plain-secret"}])
    text, data = tmp_path / "log.txt", tmp_path / "video.mp4"
    text.write_text("with plain-secret in it\n")
    data.write_bytes(b"\0\xff\xfe plain-secret")
    assert redactor.file(text) == f"with {HIDDEN} in it\n".encode()
    assert redactor.file(data) is None
    text.write_text("loss per token: 0.12345678\n")
    assert redactor.file(text, known=True) is None  # a number that others read from it
    text.write_text("without\n")
    assert redactor.file(text) is None
    text.write_bytes(b"caf\xe9: plain-secret\r\n\x80\xff")
    assert redactor.file(text) == f"caf\xe9: {HIDDEN}\r\n\x80\xff".encode("latin-1")


def test_values_of_flags_are_no_secrets_of_the_shell():
    """Guild sets FLAG_NAME for the flags of a run."""
    shell = {"FLAG_LOSS_TOKENS": "model", "FLAG_KEYS": "kept-locks", "FLAG_API_KEY": "a1b2c3d4e5"}
    redactor = Redactor([shell])
    assert redactor.name("model/config.json") == "model/config.json"
    assert redactor.text("kept-locks a1b2c3d4e5") == "kept-locks [hidden]"
