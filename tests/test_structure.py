"""No import cycle among the modules of src/; imports inside functions and for type checkers count too."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGES = [path.parent.name for path in sorted(SRC.glob("*/__init__.py"))]


def imported_names(tree: ast.AST, package: str) -> set[str]:
    """Return the full names that a module imports: of modules, or of what is in them.

    Args:
        tree: The module.
        package: The package that relative imports start from.
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            base += [node.module] if node.module else []
            names |= {".".join([*base, alias.name]) for alias in node.names}
    return names


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return the modules below a folder by name, with the modules among them that they import."""
    paths = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        graph[module] = set()
        for name in imported_names(ast.parse(path.read_text(encoding="utf-8")), package):
            # The name may be of something in a module.
            imported = name if name in paths else name.rpartition(".")[0]
            if imported in paths and imported != module:
                graph[module].add(imported)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == index[module]:
            start = stack.index(module)
            if len(stack) > start + 1:
                components.append(sorted(stack[start:]))
            del stack[start:]

    for module in graph:
        if module not in index:
            visit(module)
    return components


@pytest.fixture(scope="module")
def import_cycles() -> list[list[str]]:
    """The cycles of this repository."""
    graph = import_graph(SRC)
    assert len(graph) > 200
    assert "rl.gae" in graph["rl.ppo"]
    return cycles(graph)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle(import_cycles, package):
    assert not [cycle for cycle in import_cycles if any(m.split(".")[0] == package for m in cycle)]


def test_cycles_are_found_through_packages_functions_and_type_checking(tmp_path):
    files = {
        "a/__init__.py": "",
        "a/one.py": "from a import two",
        "a/two.py": "def f():\n    from .three import x",
        "a/three.py": "if TYPE_CHECKING:\n    import a.one\nx = 1",
        "a/four.py": "import a.one",
        "a/b/__init__.py": "from ..four import y",
        "a/b/five.py": "from a.b import z",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = import_graph(tmp_path)
    assert graph["a.b"] == {"a.four"}
    assert graph["a.b.five"] == {"a.b"}
    assert cycles(graph) == [["a.one", "a.three", "a.two"]]
