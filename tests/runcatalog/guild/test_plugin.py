"""Flags are those of Guild without the plugin, and are copied without their operation."""

import copy
import importlib
import json
import os
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml
from guild import guildfile

from runcatalog.guild import plugin

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1, help="step size")
parser.add_argument("--kind", choices=["a", "b"], default="b")
if __name__ == "__main__":
    parser.parse_args()
"""
GUILD_YML = """
- model: m
  operations:
    one: {main: s, flags-import: all}
    two: {main: s, flags-import: all, flags: {lr: {default: 7, min: 1}, kind: a}}
"""


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Load a project's flags with Guild: operation to name to attributes."""
    monkeypatch.setenv("GUILD_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "guild.yml").write_text(GUILD_YML)

    def load():
        loaded = guildfile.for_dir(str(tmp_path), no_cache=True)
        return {
            op.name: {flag.name: flag for flag in op.flags} for op in loaded.models["m"].operations
        }

    return load


def _fields(flag) -> dict:
    plain = {k: v for k, v in vars(flag).items() if k not in ("opdef", "choices")}
    return plain | {"choices": [choice.value for choice in flag.choices]}


def test_the_plugin_is_registered_with_guild():
    plugins = [entry for entry in entry_points(group="guild.plugins") if entry.name == "runcatalog"]
    assert [entry.load() for entry in plugins] == [plugin.GuildPlugin]


def test_flags_equal_those_without_the_plugin(flags, monkeypatch):
    with_it = flags()
    assert guildfile.FlagDef.__deepcopy__ is plugin._copy_flag
    assert with_it["two"]["lr"].default == 7
    assert with_it["two"]["lr"].description == "step size"
    monkeypatch.setattr(guildfile.FlagDef, "__deepcopy__", lambda flag, memo: _whole(flag, memo))
    without = flags()
    for operation, named in without.items():
        assert {n: _fields(f) for n, f in named.items()} == {
            n: _fields(f) for n, f in with_it[operation].items()
        }


def test_yaml_is_read_as_by_the_slower_parser_and_by_guild_alone(flags):
    flags()  # with Guild's plugins
    safe_load = guildfile.yaml.safe_load
    assert safe_load is plugin._safe_load
    assert yaml.safe_load is not safe_load
    files = sorted(Path(plugin.__file__).parents[3].glob("experiments/**/*.yml"))
    texts = [path.read_text() for path in files]
    texts += ["", "1e-3", "1.e-3", "0x1f", "yes", "2026-11-24", "[a, ~, .inf]", "{a: 'b: c'}"]
    for text in texts:
        assert safe_load(text) == yaml.load(text, yaml.SafeLoader)
    assert len(files) >= 5
    with pytest.raises(yaml.YAMLError):
        safe_load("a: [")


def test_flags_that_guild_has_kept_are_those_of_its_own_reading(flags, tmp_path, monkeypatch):
    fresh = flags()
    kept = list((tmp_path / "home").rglob("import-flags/*"))
    assert len(kept) == 1
    again = flags()
    plain = _plain_plugin(monkeypatch)
    for other in (again, flags()):
        for operation, named in fresh.items():
            fields = {name: _fields(flag) for name, flag in other[operation].items()}
            assert fields == {name: _fields(flag) for name, flag in named.items()}
    assert plain  # the last was read without ours


def _plain_plugin(monkeypatch) -> list:
    """Let Guild read its kept flags without the plugin; every reading is appended to the returned list."""
    import yaml
    from guild.plugins.python_script import PythonScriptPlugin

    readings = []

    def read(self, path, base_args):
        kept = self._cached_data_path(path, base_args)
        with open(kept) as file:
            readings.append(kept)
            return yaml.safe_load(file), kept

    monkeypatch.setattr(PythonScriptPlugin, "_cached_data", read)
    return readings


def test_kept_flags_are_read_once_and_again_after_a_change(flags, tmp_path, monkeypatch):
    flags()
    plugin._read_cache.cache_clear()
    flags()
    assert plugin._read_cache.cache_info().misses == 1
    assert plugin._read_cache.cache_info().hits == 1  # the other operation of the script
    for kept in (tmp_path / "home").rglob("import-flags/*"):
        os.utime(kept, (time.time() - 2,) * 2)  # not written in the same tick of the clock
    (tmp_path / "s.py").write_text(SCRIPT.replace("0.1", "0.3"))
    assert flags()["one"]["lr"].default == 0.3
    assert flags()["one"]["lr"].default == 0.3


def test_a_changed_module_next_to_the_script_invalidates_the_cache(flags, tmp_path):
    script = SCRIPT.replace("0.1", "START").replace(
        "import argparse", "import argparse\nfrom s_start import START"
    )
    (tmp_path / "s_start.py").write_text("START = 0.1")
    (tmp_path / "s.py").write_text(script)
    assert flags()["one"]["lr"].default == 0.1
    (tmp_path / "s_start.py").write_text("START = 0.25")
    later = time.time() + 2
    os.utime(tmp_path / "s_start.py", (later, later))
    sys.modules.pop("s_start", None)
    assert flags()["one"]["lr"].default == 0.25


def test_a_changed_module_of_another_folder_that_declares_flags_invalidates_the_cache(
    flags, tmp_path
):
    """A flag that was added there was unknown to `guild run` until the script itself was changed."""
    (tmp_path / "s.py").write_text(
        "import argparse\nfrom s_parts.options import Config\nfrom runcatalog import record\n"
        "if __name__ == '__main__':\n"
        "    record.run_script(print, Config, argparse.ArgumentParser())\n"
    )
    (tmp_path / "guild.yml").write_text(
        "- model: m\n  operations: {one: {main: s, flags-import: all}}"
    )
    options = tmp_path / "s_parts" / "options.py"
    options.parent.mkdir()
    declared = (
        "from dataclasses import dataclass\nfrom runcatalog import record\n"
        "@dataclass(frozen=True)\nclass Config(record.Config):\n    s_lr: float = 0.1\n"
    )
    options.write_text(declared)
    assert flags()["one"]["s-lr"].default == 0.1
    options.write_text(f"{declared}    s_momentum: float = 0.9\n")
    later = time.time() + 2
    os.utime(options, (later, later))
    assert flags()["one"]["s-momentum"].default == 0.9


def _flags_and_output(folder, monkeypatch, how) -> list[tuple[dict, str]]:
    """(flags, printed text) per script, read with `how`."""
    results = []
    monkeypatch.chdir(folder)
    for script in ("packed/one.py", "broken.py", "says_no.py"):
        kept = folder / "flags.json"
        kept.write_text("{}")
        path = os.pathsep.join([str(folder), *sys.path])
        command = [
            sys.executable, "-m", plugin.FLAG_READER, str(folder / script), Path(script).parent.name, "", str(kept)
        ]  # fmt: skip
        try:
            output = how(command, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": path})
        except subprocess.CalledProcessError as error:
            output = b"failed: " + error.output
        results.append((json.loads(kept.read_text()), output.decode()))
    return results


def test_a_copy_of_the_process_answers_as_a_new_python(tmp_path, monkeypatch):
    package = tmp_path / "packed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "guild.yml").write_text(GUILD_YML)  # Guild would take the folder for one of models
    (package / "other.py").write_text("START = 0.7")
    script = SCRIPT.replace("0.1", "other.START")
    (package / "one.py").write_text(
        script.replace("argparse\n", "argparse\nfrom packed import other\n", 1)
    )
    (tmp_path / "broken.py").write_text("import argparse, no_such_module")
    (tmp_path / "says_no.py").write_text("import argparse\nraise SystemExit('not today')")
    plain, started = subprocess.check_output, []
    with monkeypatch.context() as within:
        within.setattr(
            subprocess, "check_output", lambda *a, **k: started.append(a) or plain(*a, **k)
        )
        in_process = _flags_and_output(tmp_path, within, plugin._read_flags)
    assert len(started) == 2  # to read the error
    assert in_process[0][0]["lr"]["default"] == 0.7
    assert "no_such_module" in in_process[1][1]
    assert in_process[2] == ({}, "failed: not today\n")
    assert in_process == _flags_and_output(tmp_path, monkeypatch, subprocess.check_output)


def test_a_folder_with_this_librarys_name_next_to_the_script_is_not_imported(tmp_path):
    (tmp_path / "runcatalog").mkdir()
    (tmp_path / "runcatalog/__init__.py").write_text("START = 0.4")
    script = SCRIPT.replace("0.1", "runcatalog.START")
    (tmp_path / "s.py").write_text(f"import runcatalog\n{script}")
    kept = tmp_path / "flags.json"
    command = [sys.executable, "-m", plugin.FLAG_READER, str(tmp_path / "s.py"), "", "", str(kept)]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    plugin._read_flags(command, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": path})
    assert json.loads(kept.read_text())["lr"]["default"] == 0.4


def test_a_module_of_this_process_is_not_that_of_the_script(tmp_path, monkeypatch):
    for name, start in (("here", 0.2), ("there", 0.4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared_name.py").write_text(f"START = {start}")
    monkeypatch.syspath_prepend(tmp_path / "here")
    assert importlib.import_module("shared_name").START == 0.2
    script = SCRIPT.replace("0.1", "shared_name.START")
    (tmp_path / "there/s.py").write_text(f"import shared_name\n{script}")
    kept = tmp_path / "flags.json"
    path = os.pathsep.join([str(tmp_path / "there"), *sys.path])
    command = [
        sys.executable,
        "-m",
        plugin.FLAG_READER,
        str(tmp_path / "there/s.py"),
        "",
        "",
        str(kept),
    ]
    plugin._read_flags(command, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": path})
    assert json.loads(kept.read_text())["lr"]["default"] == 0.4
    assert sys.modules.pop("shared_name").START == 0.2


def _whole(flag, memo):
    """What `copy.deepcopy` does by itself."""
    copied = guildfile.FlagDef.__new__(guildfile.FlagDef)
    memo[id(flag)] = copied
    copied.__dict__.update(copy.deepcopy(vars(flag), memo))
    return copied


def test_a_copy_shares_its_operation_and_nothing_else(flags):
    flag = flags()["one"]["kind"]
    copied = copy.deepcopy(flag)
    assert copied.opdef is flag.opdef
    assert copied.choices is not flag.choices
    assert all(choice.flagdef is copied for choice in copied.choices)
    assert _fields(copied) == _fields(flag)


def test_imports_skip_the_finder_of_a_folder_with_a_guild_file(flags, tmp_path, monkeypatch):
    flags()  # with Guild's plugins
    from guild import model

    finder = model.ModelImporter(str(tmp_path))
    assert finder.find_spec("s") is None
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.path_importer_cache, str(tmp_path), finder)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module")


NESTED = "- model: m\n  extra: " + "[" * 200 + "]" * 200 + "\n"


def aliases(levels):
    """Return a Guild file with nested lists of ten aliases of the level below."""
    lists = [f"    a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    body = "\n".join(["    a0: &a0 [x]", *lists])
    flags = f"{{a: {{choices: *a{levels - 1}}}}}"
    return f"- model: m\n  extra:\n{body}\n  operations: {{train: {{main: x, flags: {flags}}}}}\n"


@pytest.mark.parametrize(
    ("content", "why"), [(aliases(10), "unfold to more than"), (NESTED, "nested more than 64 deep")]
)
def test_a_guild_file_that_unfolds_to_gigabytes_is_a_one_line_error(shell, content, why):
    (shell.root / "guild.yml").write_text(content)
    output = shell("guild run m:train -y", code=1)
    assert why in output
    assert len(output.splitlines()) <= 2


def test_guild_says_that_it_reads_flags_when_it_does(tmp_path):
    root, home = tmp_path / "project", tmp_path / "home"
    root.mkdir(), home.mkdir()
    (root / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', default=0.1)\np.parse_args()\n"
    )
    operations = {name: {"main": "train", "flags-import": "all"} for name in ("long", "short")}
    (root / "guild.yml").write_text(json.dumps(operations))

    def notes() -> str:
        guild = Path(sys.executable).with_name("guild")
        done = subprocess.run(
            [sys.executable, guild, "ops"],
            cwd=root,
            env=os.environ | {"GUILD_HOME": str(home)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "long" in done.stdout
        return done.stderr

    assert notes() == "Reading the flags of new or changed scripts ...\n"
    assert notes() == ""
    os.utime(root / "train.py", (time.time() + 60,) * 2)
    assert notes() == "Reading the flags of new or changed scripts ...\n"


def test_a_command_reads_the_flags_of_its_own_operation_alone(shell):
    operations = {name: {"main": name, "flags-import": "all"} for name in ("one", "two")}
    (shell.root / "guild.yml").write_text(json.dumps(operations))
    for name in operations:
        (shell.root / f"{name}.py").write_text(
            "import argparse\np = argparse.ArgumentParser()\n"
            f"p.add_argument('--of-{name}', default=0.1)\nprint(p.parse_args())\n"
        )
    kept = Path(shell.env["GUILD_HOME"]) / "cache/import-flags"
    assert "of-one  (default is 0.1)" in shell("guild run one --help-op")
    assert len(list(kept.iterdir())) == 1
    assert "Namespace(of_two=3)" in shell("guild run two of-two=3 -y").replace("'", "")
    assert len(list(kept.iterdir())) == 2
    assert "unsupported flag 'of-two'" in shell("guild run one of-two=3 -y", code=1)


def test_a_run_whose_directory_was_deleted_ends_without_a_traceback(shell):
    (shell.root / "guild.yml").write_text(
        "- model: toy\n  operations: {gone: {main: gone, flags-import: no}}\n"
    )
    (shell.root / "gone.py").write_text(
        "import os, shutil\nprint('going', flush=True)\nshutil.rmtree(os.environ['RUN_DIR'])\n"
    )
    assert "going" in shell("guild run gone -y", code=None)


def test_trials_of_a_script_with_switches_that_turn_off_are_started_as_a_single_run_is(shell):
    (shell.root / "guild.yml").write_text(
        "- model: toy\n  operations: {switches: {main: switches, flags-import: all}}\n"
    )
    (shell.root / "switches.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--plain', action='store_false')\n"
        "parser.add_argument('--cuda', action=argparse.BooleanOptionalAction, default=True)\n"
        "options = parser.parse_args()\nprint('given', options.plain, options.cuda)\n"
    )
    output = shell("guild run switches plain=[yes,no] cuda=no -y")
    assert "given True False" in output
    assert "given False False" in output
    assert "2 of 2 trials finished" in output
