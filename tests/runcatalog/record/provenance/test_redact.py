"""What looks like a secret is hidden wherever it stands, and nothing else is."""

import string

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


@given(
    name=st.sampled_from(["HF_TOKEN", "DB_PASSWORD", "WANDB_API_KEY", "githubToken", "SENTRY_DSN"]),
    value=VALUES,
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_the_value_of_a_secret_variable_is_nowhere(name, value, before, after):
    redactor = Redactor([{name: value}])
    assert value not in redactor.text(f"{before}{value}{after}").replace(HIDDEN, "\0")
    told = redactor.value({"a": [f"x {value}"], value: 1})
    assert value not in str(told).replace(HIDDEN, "\0")


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
def test_a_known_form_is_hidden_whoever_set_it(secret):
    shown = Redactor().text(f"before {secret} after")
    assert shown == f"before {HIDDEN} after"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://me:pw@db/mlflow", f"postgresql://{HIDDEN}@db/mlflow"),
        ("Authorization: Bearer abcdefghijklmnop", f"Authorization: Bearer {HIDDEN}"),
        ("python t.py --api-key abc --lr 1e-3", f"python t.py --api-key {HIDDEN} --lr 1e-3"),
        ("password = hunter2hunter2", f"password = {HIDDEN}"),
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
    ],
)
def test_ordinary_text_stays(text):
    environment = {"SSH_AUTH_SOCK": "/tmp/agent", "KEYS": "12", "PIN": "true", "LANG": "update"}
    assert Redactor([environment]).text(text) == text


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
    held = {
        "A_TOKEN": "0123456789",
        "B": "x\ny",
        "C_PASSWORD": "line one\n two: 'three'",
        "D_KEY": "1e3",
    }
    (attrs / "env").write_text(yaml.safe_dump(held))
    assert guild_secrets(tmp_path) == {n: v for n, v in held.items() if n != "B"}
    for broken in ("{", "- a", "A_TOKEN: &a [b]\nB_TOKEN: *a\n", "\0", "A_TOKEN: {b: c}\n"):
        (attrs / "env").write_text(broken)
        assert guild_secrets(tmp_path) == {}
    assert guild_secrets(tmp_path / "nowhere") == {}


def test_a_file_is_changed_only_if_it_holds_one(tmp_path):
    redactor = Redactor([{"A_TOKEN": "plain-secret"}])
    text, data = tmp_path / "log.txt", tmp_path / "video.mp4"
    text.write_text("with plain-secret in it\n")
    data.write_bytes(b"\xff\xfe plain-secret")
    assert redactor.file(text) == f"with {HIDDEN} in it\n"
    assert redactor.file(data) is None
    text.write_text("loss per token: 0.12345678\n")
    assert redactor.file(text, known=True) is None  # a number that others read from it
    text.write_text("without\n")
    assert redactor.file(text) is None
