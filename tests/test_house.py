"""The house stands as docs/architecture.md draws it: imports point down, rooms are small, nothing is named twice."""

import ast
import doctest
import functools
import importlib
import re
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

import sightline as sl

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sightline"
FLOORS = [
    {"untrusted"},
    {"files", "archives", "fingerprints", "memory", "progress", "sharing"},
    {"spec"},
    {"models", "data"},
    {"weights", "adoption", "references"},
    {"observe"},
    {"evals"},
    {"dense"},
    {"training", "analysis"},
    {"studies", "views"},
    {"report"},
    {"app"},
    {"cli"},
    {"__main__"},
]
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({p.parent for p in FILES} - {PACKAGE})
NAMESPACES = ["sightline", *(f"sightline.{p.parent.name}" for p in sorted(PACKAGE.glob("*/__init__.pyi")))]
LONG_FILE, LONG_FUNCTION, MANY_ARGUMENTS, MANY_FILES = 400, 60, 8, 14
# numbers of a list that no reader has; R26, R50, R101 and R152 are ResNets
PRIVATE_NUMBER = re.compile(r"\b(?:R(?!(?:26|50|101|152)\b)\d{1,3}|issue \d+)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path) -> set[str]:
    """Everything of ours that the file imports, wherever in the file the import stands."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports from the root, they are easier to check"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return {n for n in names if n.split(".")[0] == "sightline"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down(path):
    if path == PACKAGE / "__init__.py":
        return
    here = room(path)
    for other in {(n + ".").split(".")[1] or "sightline" for n in imported(path)} - {here}:
        if other == "sightline":  # `import sightline as sl` sees every floor, so only the top floor may say it
            assert here == "cli", f"{path}: import the room, not the whole house"
        else:
            assert floor(other) < floor(here), f"{path}: {here} may not import {other}"


def test_lazy_names_come_from_their_own_room():
    for stub in PACKAGE.glob("*/__init__.pyi"):
        for node in ast.parse(stub.read_text()).body:
            assert isinstance(node, ast.ImportFrom), f"{stub}: imports only"
            assert node.level == 1, f"{stub}: {node.module} is another room's"


def test_no_cycle_inside_a_room():
    modules = {module_of(p): p for p in FILES if p.name != "__init__.py"}
    graph = {
        m: {n if n in modules else n.rpartition(".")[0] for n in imported(p)} & set(modules) - {m}
        for m, p in modules.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("folder", ROOMS, ids=name_of)
def test_rooms_stay_small(folder):
    files = [p.name for p in folder.glob("*.py") if p.name != "__init__.py"]
    assert len(files) <= MANY_FILES, f"{folder} has {len(files)} files: give it sub-rooms"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONG_FILE
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{path.name}:{node.lineno} {node.name}"
            assert (node.end_lineno or 0) - node.lineno < LONG_FUNCTION, where
            verb = any("verb" in ast.dump(d) or "command" in ast.dump(d) for d in node.decorator_list)
            if not verb:  # a command line verb has one argument per option
                assert len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) <= MANY_ARGUMENTS + 1, where


def test_about_forty_names_at_the_top():
    rooms = {n for n in sl.__all__ if isinstance(getattr(sl, n), types.ModuleType)}
    assert 30 <= len(set(sl.__all__) - rooms) <= 40


def test_a_public_name_has_one_definition():
    """The same name in two namespaces is the same thing, and no module of a room hides a public name of that room."""
    found: dict[str, object] = {}
    for space in map(importlib.import_module, NAMESPACES):
        for name in space.__all__:
            thing = getattr(space, name)
            if not isinstance(thing, types.ModuleType):
                assert found.setdefault(name, thing) is thing, f"{name} means two things"
                assert f"{space.__name__}.{name}" not in sys.modules, f"the module {name} hides {space.__name__}.{name}"


def test_public_classes_are_defined_once():
    names = Counter(
        node.name
        for p in FILES
        for node in parsed(p).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    twice = {name for name, count in names.items() if count > 1}
    assert twice <= {"Unit"}, twice  # a residual unit of BiT and one of the hybrid's backbone


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_private_numbers(path):
    found = PRIVATE_NUMBER.search(path.read_text())
    assert not found, f"{path}: {found} says nothing to a reader"


@functools.cache
def public_things():
    seen = {}
    for space in map(importlib.import_module, NAMESPACES):
        for name in space.__all__:
            thing = getattr(space, name)
            if not isinstance(thing, types.ModuleType):
                seen[name] = thing
            elif thing.__name__ == "sightline.training.recipes":
                seen |= {n: getattr(thing, n) for n in thing.__all__}
    return seen


@pytest.mark.parametrize("name", sorted(public_things()))
def test_public_names_have_a_docstring_whose_example_runs(name):
    thing = public_things()[name]
    assert thing.__doc__, f"{name} has no docstring"
    globs = {**vars(sys.modules[thing.__module__]), "sl": sl}
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs=globs)
    assert any(test.examples for test in tests), f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.failures == 0


def test_the_tree_in_the_docs_is_the_real_tree():
    tree = re.search(r"```tree\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.S)
    assert tree, "docs/architecture.md has no ```tree block"
    folders: list[str] = []
    written = set()
    for line in tree.group(1).splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name.rstrip("/")]
        if name.endswith(".py"):
            written.add("/".join(folders))
        assert len(line.split()) > 1, f"docs/architecture.md: no word about {name}"
    real = {name_of(p) for p in FILES if p.name != "__init__.py" or p.parent == PACKAGE}
    assert written == real


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_text_is_read_and_written_as_utf_8(path):
    """Otherwise the language of the terminal decides: a page could not be written under LC_ALL=C."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    texts = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in ("read_text", "write_text")]
    assert not [c.lineno for c in texts if "encoding" not in {k.arg for k in c.keywords}]
