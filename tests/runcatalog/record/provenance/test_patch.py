"""dirty.patch turns the commit into the tree that the run was started from, and holds no secret."""

import os
import shutil
import subprocess

import pytest

from runcatalog import record
from runcatalog.record.provenance import environment, patch

SECRETS = {
    ".env": "TOKEN=another\n",  # of another size: git need not look at a file whose size and time are as before
    "src/.env.local": "PLANTED=1\n",
    "deploy_key.pem": "planted key\n",
    ".aws/config": "planted word\n",
    "hub_token": "planted token\n",
    "src/client.py": 'login("hf_' + "a" * 34 + '")\n',
    "src/database.py": 'connect("postgresql://me:pass@box/db")\n',
    "src/known.py": 'key = "the-value-of-a-variable"\n',
    "src/encoded.py": 'key = "dGhlLXZhbHVlLW9mLWEtdmFyaWFibGU="\n',
    "src/lone.py": 'fetch("https://0a1b2c3d@host/x")\n',
    "src/login.py": 'password = "hunter2"\n',
    "src/typed.py": "DB_PASSWORD: str = 'hunter2'\n",
    "src/request.py": 'post(url, {"api_key": "hunter2"})\n',
    "src/shell.py": 'os.environ["SECRET"] = "hunter2"\n',
    "src/bearer.py": 'token = "0a1b2c3d4e5f"\n',
    "deploy.yml": "db:\n  password: hunter2\n",
    "start.sh": "export DB_PASSWORD=hunter2\n",
}

# Code that names secrets and contains none.
GOOD = {
    "src/good.py": "good = 1\n",
    "src/ask.py": 'password = getpass()\npassword = os.environ["DB_PASSWORD"]\nsecret = "DB_SECRET"\n',
    "src/words.py": 'pad_token = "<|endoftext|>"\nmask_token = "[MASK]"\nnext_token = "hello"\n',
    "src/address.py": 'url = f"https://{user}:{password}@{host}"\napi_key = "{key}"\n',
    "src/options.py": 'parser.add_argument("--password", help="password: of the database")\n',
    "good.yml": "password: ${DB_PASSWORD}\ntokens: 4096\nsecret: null\n",
}

LONG = "".join(f"line {i}\n" for i in range(50))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose user has configured git in every way that changes what a diff looks like."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SERVICE_PASSWORD", "the-value-of-a-variable")
    for name in ("RUN_DIR", "RUN_ID", "GUILD_OP"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".gitconfig").write_text(
        "[user]\nname = a\nemail = a@b\n[diff]\nnoprefix = true\nmnemonicPrefix = true\n"
        "external = false\nrenames = copies\ncontext = 0\n[color]\nui = always\n[core]\nabbrev = 5\n"
    )
    root = tmp_path / "repository"
    files = {
        "src/train.py": "lr = 1\nsteps = 2\n",
        "src/gone.py": "old\n",
        "src/long.py": LONG,
        "src/moved.py": LONG,
        "src/latin.py": "# caf\xe9\n".encode("latin-1"),
        "src/weights.bin": bytes(range(256)) * 9,
        ".env": "TOKEN=0\n",
        ".gitignore": "runs/\n",
        "README.md": "prose\n",
    }
    write(root, files)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    monkeypatch.setenv("PROJECT_DIR", str(root))
    monkeypatch.setenv("RECORD_MLFLOW", "off")
    return root


def git(root, *arguments, given=None):
    done = subprocess.run(["git", *arguments], cwd=root, input=given, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def tree(root):
    """Return the files that can change a run, and what is in them."""
    paths = (path for path in root.rglob("*") if ".git" not in path.parts and path.is_file())
    names = {path.relative_to(root).as_posix(): path for path in paths}
    return {
        name: (path.read_bytes(), os.access(path, os.X_OK))
        for name, path in names.items()
        if not name.startswith("runs/") and not name.endswith(".md")
    }


def change(root):
    """Change the working tree in every way."""
    (root / "src" / "gone.py").unlink()
    (root / "src" / "moved.py").rename(root / "src" / "there.py")
    (root / "src" / "train.py").chmod(0o755)
    files = {
        "src/train.py": "lr = 2\nsteps = 2",  # no newline at the end
        "src/latin.py": "# caf\xe9s\n".encode("latin-1"),
        "src/weights.bin": bytes(range(255, -1, -1)) * 9,
        "src/new file \u00e9 'quoted'.py": "a = 1\r\nb = 2\n",
        "src/empty.py": "",
        "src/long.py": LONG.replace("line 9\n", "changed\n"),
        "src/token_mask.py": "pad_token = tokenizer.something_long\n",
        "README.md": "other prose\n",
        "runs/x": "ignored",
    }
    write(root, files)
    git(root, "add", "src/latin.py")  # what is staged counts as well


def test_the_patch_restores_the_tree(repository, tmp_path):
    change(repository)
    before = git(repository, "status", "--porcelain"), sorted((repository / ".git").rglob("*"))
    with record.start(record.Config(), study="toy") as run:
        run.finish({})
    assert before[0] == git(repository, "status", "--porcelain")
    assert before[1] == sorted((repository / ".git").rglob("*"))  # nothing was written to it
    written = run.directory / "artifacts" / "dirty.patch"
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    assert tree(clone) != tree(repository)
    git(clone, "apply", str(written))
    assert tree(clone) == tree(repository)
    assert (clone / "README.md").read_text() == "prose\n"


def test_a_clean_tree_has_no_patch(repository):
    write(repository, {"README.md": "other prose\n"})
    with record.start(record.Config(), study="toy") as run:
        run.finish({})
    assert not (run.directory / "artifacts" / "dirty.patch").exists()


def test_a_project_below_the_repository(repository, tmp_path):
    change(repository)
    write(repository, {"elsewhere.py": "not of the project\n"})
    target = tmp_path / "dirty.patch"
    patch.write(repository / "src", "c" * 40, target)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(target))
    assert tree(clone / "src") == tree(repository / "src")
    assert not (clone / "elsewhere.py").exists()


def test_changes_in_a_submodule_are_told_apart_and_named(repository, tmp_path):
    (tmp_path / ".gitconfig").write_text("[user]\nname = a\nemail = a@b\n[diff]\nsubmodule = log\n")
    git(tmp_path, "clone", "-q", str(repository), str(tmp_path / "library"))
    allowed = ("-c", "protocol.file.allow=always")
    git(repository, *allowed, "submodule", "add", "-q", str(tmp_path / "library"), "library")
    git(repository, "commit", "-qm", "with a library")
    assert environment.commit_facts(repository)["dirty"] == ""
    digests = set()
    for number in (2, 3):
        write(repository, {"library/src/train.py": f"lr = {number}\n"})
        digests.add(environment.commit_facts(repository)["dirty"])
    assert len(digests) == 2
    write(repository, {"src/train.py": "lr = 4\n"})
    target = tmp_path / "dirty.patch"
    patch.write(repository, "c" * 40, target)
    assert "# Left out: 'library' (changes in a submodule)\n" in target.read_text()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(target))
    assert (clone / "src" / "train.py").read_text() == "lr = 4\n"


def test_an_external_diff_does_not_hide_which_changes_a_run_had(repository):
    """The user's configuration has `external = false`."""
    write(repository, {"src/train.py": "lr = 4\n"})
    assert len(environment.commit_facts(repository)["dirty"]) == 12


def test_secrets_large_and_binary_files_stay_out_and_are_named(repository, tmp_path):
    large = {"src/large.py": b"#" * (patch.MAX_FILE_BYTES + 1), "src/new.bin": b"\0\1\2"}
    write(repository, SECRETS | large | GOOD)
    changed = 'steps = 2\nlogin(user, password="hunter2")\n'
    write(repository, {"src/train.py": changed})  # a file of the commit
    target = tmp_path / "dirty.patch"
    patch.write(repository, "c" * 40, target)
    text = target.read_text()
    head, changes = text.split("diff --git", 1)
    for name, content in SECRETS.items():
        assert f"Left out: {name!r}" in head
        assert f"b/{name}" not in changes
        assert content.strip() not in text
    for name in [*large, "src/train.py"]:
        assert f"Left out: {name!r}" in head
    assert "hunter2" not in text
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(target))
    assert {name: (clone / name).read_text() for name in GOOD} == GOOD
    assert (clone / ".env").read_text() == "TOKEN=0\n"


def test_a_patch_has_a_limit_and_a_broken_repository_is_no_error(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(patch, "MAX_BYTES", 400)
    write(repository, {"src/a.py": "a = 1\n", "src/b.py": "b = 1\n" * 99, "src/c.py": "c = 1\n"})
    target = tmp_path / "dirty.patch"
    patch.write(repository, "c" * 40, target)
    assert "Left out: 'src/b.py' (the patch would be too large)" in target.read_text()
    assert "c = 1" not in target.read_text().split("src/a.py")[0]
    (repository / ".git" / "HEAD").write_text("broken")
    target.unlink()
    patch.write(repository, "c" * 40, target)
    assert not target.exists()
    assert environment.commit_facts(repository) == {"commit": "", "dirty": ""}


def test_there_is_no_patch_where_git_cannot_tell_the_changes(repository, tmp_path):
    """It had its first line alone, as if nothing had been changed."""
    write(repository, {"src/train.py": "lr = 2\n"})
    target = tmp_path / "dirty.patch"
    objects = repository / ".git" / "objects"
    objects.rename(tmp_path / "objects")
    (objects / "info").mkdir(parents=True)
    patch.write(repository, "c" * 40, target)
    assert not target.exists()
    shutil.rmtree(objects)
    (tmp_path / "objects").rename(objects)
    patch.write(repository, "c" * 40, target)
    assert "+lr = 2" in target.read_text()
