"""Every name of Guild that the project's sources use exists in the installed Guild."""

import ast
import importlib
import inspect
from importlib.metadata import version
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest

from runcatalog.guild import compat

SOURCES = Path(__file__).parents[3] / "src"
# What Guild calls by position or name; a change here is a change of Guild's.
SIGNATURES = {
    "batch_util.init_trial_run": ["batch_run", "trial_flag_vals", "run_dir"],
    "batch_util.start_trial_run": ["run", "stage"],
    "batch_util._trial_label": ["proto_run", "trial_flag_vals"],
    "batch_util._run_trials": ["batch_run", "trials"],
    "batch_util._init_trial_runs": ["batch_run", "trials"],
    "batch_util.handle_trial_system_exit": ["e", "batch_run", "trial_run"],
    "batch_util.trial_results": ["batch_run", "scalars", "prev_trials_mode"],
    "flag_util._fix_surprising_number": ["val", "s"],
    "op.init_run": ["op", "run_dir"],
    "op._resolve_deps": ["op", "run"],
    "resolver.marked_or_latest_run": ["oprefs", "run_id_prefix", "status"],
    "resolver.matching_runs": ["oprefs", "run_id_prefix", "status"],
    "resolver.oprefs_for_source": ["source"],
    "resolver._matching_run_status": ["include_staged"],
    "resolver._resolve_run_files": ["run", "source", "unpack_dir"],
    "resolver._unpack_dir": ["source_path", "explicit_unpack_dir"],
    "op_util.flag_vals_for_opdef": ["opdef", "user_flag_vals", "force"],
    "run.for_dir": ["run_dir"],
    "var.runs": ["root", "sort", "filter"],
    "run.Run.write_attr": ["name", "val", "raw"],
    "op_util.RunOutput._close": ["self"],
    "op_cmd._cmd_flag_as_data": ["cmd_flag"],
    "python_script.PythonScriptPlugin._apply_script_flags": ["opdef", "local_cache"],
    "python_script.PythonScriptPlugin._cached_data": ["base_args"],
    "python_script.PythonScriptPlugin._cached_data_path": ["mod_path", "base_args"],
    "python_script.PythonScriptPlugin._cache_valid": ["cache_path", "mod_path"],
}


def uses() -> dict[str, set[str]]:
    """Files by `module.name`, for all names that are read from modules of :mod:`runcatalog.guild.compat`."""
    users: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        if "runcatalog.guild.compat" not in text:
            continue
        tree = ast.parse(text)
        scopes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]
        for scope in scopes:
            local = {
                alias.asname or alias.name: alias.name
                for node in scope.body
                if isinstance(node, ast.ImportFrom) and node.module == "runcatalog.guild.compat"
                for alias in node.names
                if alias.name in compat.MODULES
            }
            for node in ast.walk(scope):
                named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if named and node.value.id in local:
                    name = f"{local[node.value.id]}.{node.attr}"
                    users.setdefault(name, set()).add(str(path.relative_to(SOURCES)))
    return users


USES = uses()


def test_the_sources_use_guild():
    assert {"batch_util.init_trial_run", "index.RunIndex", "var.runs"} <= set(USES)


@pytest.mark.parametrize("name", sorted(USES))
def test_guild_has_what_is_used(name):
    module, _, attribute = name.partition(".")
    moved = f"guildai {version('guildai')} moved {compat.MODULES[module]}.{attribute}, used by {sorted(USES[name])}"
    assert hasattr(getattr(compat, module), attribute), moved


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_calls_have_the_arguments_that_are_passed(name):
    module, _, attribute = name.partition(".")
    function = attrgetter(attribute)(getattr(compat, module))
    arguments = list(inspect.signature(function).parameters)
    assert set(SIGNATURES[name]) <= set(arguments), (
        f"guildai {version('guildai')} changed the arguments of {name}: {arguments}"
    )


@pytest.mark.parametrize("module", [compat.COMMAND, compat.FLAG_READER])
def test_modules_that_are_started_are_there(module):
    assert find_spec(module), f"guildai {version('guildai')} moved {module}"


def test_guild_is_imported_here_alone():
    """Plugins, which Guild itself loads, name the public class that they extend, and nothing else."""
    direct = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level
                else [alias.name for alias in node.names] if isinstance(node, ast.Import)
                else []
            )  # fmt: skip
            if any(name.split(".")[0] == "guild" and name != "guild.plugin" for name in names):
                direct.add(str(path.relative_to(SOURCES / "runcatalog")))
    assert direct <= {"guild/compat.py"}


def test_an_unknown_module_is_an_error():
    with pytest.raises(AttributeError, match="not a module of Guild"):
        importlib.import_module("runcatalog.guild.compat").nothing  # noqa: B018
