"""The house stands as docs/architecture.md draws it: imports point down, rooms are small, README is true."""

import ast
import doctest
import re
import types
from pathlib import Path

import pytest

import sightline as sl

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"spec", "threads"},
    {"models", "data"},
    {"weights"},
    {"evals"},
    {"training", "analysis"},
    {"studies", "figures"},
    {"report", "viewer"},
    {"cli"},
    {"__main__"},
]
FILES = sorted((ROOT / "sightline").rglob("*.py"))
LONG_FILE, LONG_FUNCTION, MANY_ARGUMENTS = 400, 60, 8


def room(path: Path) -> str:
    return path.relative_to(ROOT / "sightline").parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


def imported_rooms(path: Path) -> set[str]:
    """Every room of ours that the file imports, wherever in the file the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports from the root, they are easier to check"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return {(n + ".").split(".")[1] or "sightline" for n in names if n.split(".")[0] == "sightline"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    if path == ROOT / "sightline/__init__.py":
        return
    here = room(path)
    for other in imported_rooms(path) - {here}:
        if other == "sightline":  # `import sightline as sl` sees every floor, so only the top floor may say it
            assert here == "cli", f"{path}: import the room, not the whole house"
        else:
            assert floor(other) < floor(here), f"{path}: {here} may not import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONG_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{path.name}:{node.lineno} {node.name}"
            assert (node.end_lineno or 0) - node.lineno < LONG_FUNCTION, where
            verb = any("verb" in ast.dump(d) or "command" in ast.dump(d) for d in node.decorator_list)
            if not verb:  # a command line verb has one argument per option
                assert len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) <= MANY_ARGUMENTS + 1, where


@pytest.mark.parametrize("name", sl.__all__)
def test_public_names_have_a_docstring_whose_example_runs(name):
    thing = getattr(sl, name)
    if isinstance(thing, types.ModuleType):
        names = [n for n, v in vars(thing).items() if getattr(v, "__module__", None) == thing.__name__ and n[0] != "_"]
        things = [getattr(thing, n) for n in names]
    else:
        things = [thing]
    for each in things:
        assert each.__doc__, f"{each} has no docstring"
        examples = [
            e for t in doctest.DocTestFinder(recurse=False).find(each, name, globs={"sl": sl}) for e in t.examples
        ]
        assert examples, f"{each} has no example"
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        for test in doctest.DocTestFinder(recurse=False).find(each, name, globs={**vars(sl), "sl": sl}):
            runner.run(test)
        assert runner.failures == 0


def test_readme_tree_is_the_real_tree():
    tree = re.search(r"```tree\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert tree, "README.md has no ```tree block"
    folders: list[str] = []
    written = set()
    for line in tree.group(1).splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name.rstrip("/")]
        if name.endswith(".py"):
            written.add("/".join(folders))
        assert len(line.split()) > 1, f"README.md: no word about {name}"
    real = {str(p.relative_to(ROOT)) for p in FILES if p.name != "__init__.py" or p.parent.name == "sightline"}
    assert written == real
