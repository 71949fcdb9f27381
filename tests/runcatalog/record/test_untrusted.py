"""Untrusted run directories and checkpoints: hostile content is refused with one line."""

import json
import os
import pickle

import pytest
import torch
import yaml

from runcatalog import record
from runcatalog.record.delivery.publish import publish
from runcatalog.record.journal.files import read_json
from runcatalog.record.journal.lines import read_lines
from runcatalog.record.training.checkpoint import save_checkpoint
from runcatalog.record.untrusted import checked_facts, guild_attribute, load_yaml, printable
from runcatalog.store.client import Store

MARK = "a line of the file outside"


class Exploit:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def forged(folder, **changes):
    """Write a checkpoint whose files are replaced by `changes`, with a matching manifest."""
    path = save_checkpoint(folder, 1, {"a": torch.ones(2)}, {"b": 1})
    manifest = json.loads((path / "checkpoint.json").read_text())
    for name, content in changes.items():
        (path / name).write_bytes(content)
        manifest["files"][name] = journal_digest(content)
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    return path


def journal_digest(content):
    import hashlib

    return hashlib.sha256(content).hexdigest()


def test_a_pickle_is_refused_and_does_not_run(tmp_path):
    ran = tmp_path / "ran"
    for content in (pickle.dumps(Exploit(ran)), _torch_saved(Exploit(ran), tmp_path)):
        path = forged(tmp_path / "checkpoints", **{"state.pt": content})
        with pytest.raises(record.UserError, match=r"state\.pt .*refused") as error:
            record.load_checkpoint(path)
        assert "\n" not in str(error.value)
    assert not ran.exists()


def _torch_saved(value, folder):
    torch.save({"b": value}, folder / "saved.pt")
    return (folder / "saved.pt").read_bytes()


def test_a_file_in_place_of_a_folder_is_not_opened(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps(Exploit(tmp_path / "ran")))
    with pytest.raises(record.UserError, match=r"weights\.safetensors is expected"):
        record.load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x80\x02}q\x00.", b"PK\x03\x04rest"])
@pytest.mark.parametrize("name", ["state.pt", "weights.safetensors"])
def test_invalid_files_give_a_one_line_error(tmp_path, name, content):
    path = forged(tmp_path, **{name: content})
    with pytest.raises(record.UserError, match=name):
        record.load_checkpoint(path)


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {},
        {"step": "1", "files": {}},
        {"step": 1, "files": ["weights.safetensors"]},
        {"step": 1, "files": {}, "run": 3},
    ],
)
def test_a_manifest_of_another_shape_is_refused(tmp_path, manifest):
    path = forged(tmp_path)
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    with pytest.raises(record.UserError, match="checkpoint"):
        record.load_checkpoint(path)


def test_a_checkpoint_cannot_name_files_outside(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text(MARK)
    path = forged(tmp_path / "checkpoints", **{"../../outside": MARK.encode()})
    with pytest.raises(record.UserError, match=r"\.\./\.\./outside.*refused"):
        record.load_checkpoint(path)
    path = forged(tmp_path / "links")
    (path / "state.pt").unlink()
    (path / "state.pt").symlink_to(outside)
    with pytest.raises(record.UserError, match="leads out of the folder"):
        record.load_checkpoint(path)
    # Guild links the folders of required runs; such a link is allowed.
    whole = forged(tmp_path / "real")
    (tmp_path / "link").symlink_to(whole)
    assert record.load_checkpoint(tmp_path / "link").step == 1


def test_a_2_gb_json_is_not_read(tmp_path):
    path = tmp_path / "journal" / "run.json"
    path.parent.mkdir()
    with path.open("wb") as file:  # sparse: takes no space on the disk
        file.truncate(2 << 30)
    assert read_json(path) is None
    with pytest.raises(record.UserError, match=r"2147483648 bytes"):
        checked_facts(tmp_path)
    with (path.parent / "metrics.jsonl").open("wb") as file:
        file.truncate(2 << 30)
    assert list(read_lines(path.parent / "metrics.jsonl")) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "x' OR 1=1 --"),
        ("id", None),
        ("study", "../../elsewhere"),
        ("operation", 3),
        ("operation", "x" * 5000),
        ("command", 3),
        ("flags", ["lr"]),
        ("seed", 1 << 70),
        ("started", "yesterday"),
    ],
)
def test_facts_that_no_run_writes_are_refused(project, toy, name, value):
    assert toy.run("--updates", 1)[0] == 0
    path = toy.directory / "journal" / "run.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {name: value}))
    with pytest.raises(record.UserError, match=f"'{name}'"):
        publish(toy.directory)
    assert not (project / "mlflow.db").exists()


def test_runs_with_a_long_text_as_a_flag_are_sent_and_stay_different(project, toy):
    """Such a run was refused at its end, for the length of its command."""
    assert toy.run("--updates", 1)[0] == 0
    path = toy.directory / "journal" / "run.json"
    facts = json.loads(path.read_text())
    for number in (1, 2):
        text = f"{'word ' * 3000}{number}"
        changed = {"id": f"{number}" * 32, "command": f"python toy.py --note '{text}'"}
        changed["flags"] = {**facts["flags"], "note": text}
        path.write_text(json.dumps(facts | changed))
        (path.parent / "mlflow.json").unlink(missing_ok=True)
        publish(toy.directory)
        publish(toy.directory)
    stored = Store().runs()
    assert all("changed_flags" not in run.own_tags for run in stored)
    assert len({run.record.flags["note"] for run in stored}) == 2


def test_yaml_that_unfolds_to_gigabytes_is_not_read(tmp_path):
    attrs = tmp_path / ".guild" / "attrs"
    attrs.mkdir(parents=True)
    levels = ["&a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (attrs / "label").write_text("[" + ", ".join(levels) + "]")
    assert guild_attribute(tmp_path, "label") is None
    (attrs / "label").write_text("x" * (2 << 20))
    assert guild_attribute(tmp_path, "label") is None
    for text, value in [("a & b && c\n", "a & b && c"), ("{lr: 0.1}", {"lr": 0.1}), ("12\n", 12)]:
        (attrs / "label").write_text(text)
        assert guild_attribute(tmp_path, "label") == value
    assert guild_attribute(tmp_path, "none") is None


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
)
DEEP = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100))])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "unfold"), (BOMB.replace("[", "{a: ").replace("]", "}").replace(", ", ", b: ", 1), "."),
        (DEEP, "deep"), ("[" * 500 + "]" * 500, "deep"), ("[" * 100_000, "."), ("a: &a [*a]", "alias"),
        (f"a: &a {'x' * 10_000}\nb: [{'*a, ' * 5000}]", "unfold"),
        ("!!int ''", "tag"), ("!!bool x", "tag"), ("!!timestamp x", "tag"), ("2026-13-45", "month"),
        (f"!!int {'9' * 10_000}", "digits"), ("a: [", "expected"),
    ],
)  # fmt: skip
def test_yaml_that_is_too_large_or_wrong_is_an_error(text, words):
    with pytest.raises((ValueError, yaml.YAMLError), match=words):
        load_yaml(text)


def test_nothing_printable_is_lost_and_nothing_else_is_kept():
    assert printable("a\tb\n\u00e9 \u2014 \u6f22") == "a\tb\n\u00e9 \u2014 \u6f22"
    assert printable("\x1b[2J\x9b2J\x07\r\x7f\u202e\ud800x") == "[2J2Jx"


def test_yaml_with_a_few_aliases_is_read():
    text = "base: &base {lr: 0.1, sizes: &s [1, 2]}\nops: [{<<: *base, lr: 0.2}, *s, *base]\n"
    assert load_yaml(text) == yaml.safe_load(text)
    assert load_yaml("") is None
    assert load_yaml("# nothing\n") is None


def test_what_leads_out_of_a_run_is_not_sent_and_the_rest_is(project, toy, tmp_path):
    from mlflow import MlflowClient

    outside = tmp_path / "outside.txt"
    outside.write_text(MARK)
    assert toy.run("--updates", 2)[0] == 0
    (toy.directory / "artifacts" / "inside.txt").write_text("inside")
    (toy.directory / "artifacts" / "stray.txt").symlink_to(outside)
    with (toy.directory / "journal" / "metrics.jsonl").open("a") as file:
        file.write('{"t": 1, "step": 1}\n')
    with pytest.raises(record.UserError, match=r"stray\.txt: leads out"):
        publish(toy.directory)
    published = publish(toy.directory)  # the error is raised only once
    assert published.status.status == "FINISHED"
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    names = {artifact.path for artifact in client.list_artifacts(published.mlflow_run_id)}
    assert "inside.txt" in names
    assert "stray.txt" not in names
    content = "".join(p.read_text(errors="replace") for p in _files(project / "mlartifacts"))
    assert MARK not in content


def _files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_planted_token_is_in_nothing_that_is_published(project, toy):
    """The token is in the environment, output, files, flags and reason of the run."""
    token = "planted-0123456789-token"
    assert toy.run("--updates", 2, env={"HUB_TOKEN": token})[0] == 0
    attrs = toy.directory / ".guild" / "attrs"
    attrs.mkdir(parents=True)
    (attrs / "env").write_text(f"HOME: /root\nHUB_TOKEN: {token}\n")
    (attrs / "label").write_text(f"with {token}\n")
    (toy.directory / "artifacts" / "notes.txt").write_text(f"curl -H {token}\n")
    result = json.loads((toy.directory / "result.json").read_text())
    result |= {"status": "FAILED", "reason": f"ValueError: 401 for {token}"}
    result["result"] = {**(result["result"] or {}), "summary": f"as {token}", "key": [token]}
    (toy.directory / "result.json").write_text(json.dumps(result))
    (toy.directory / ".guild" / "output").write_text(f"login {token}\n" * 3)
    path = toy.directory / "journal" / "run.json"
    facts = json.loads(path.read_text())
    facts["command"] += f" --hub {token}"
    facts["flags"]["hub"] = token
    facts["environment"]["HUB_TOKEN"] = token  # as if the allow-list had let it through
    path.write_text(json.dumps(facts))
    assert os.environ.get("HUB_TOKEN") is None
    publish(toy.directory)
    everything = [project / "mlflow.db", *_files(project / "mlartifacts")]
    assert len(everything) > 3
    for path_ in everything:
        assert token.encode() not in path_.read_bytes(), path_
