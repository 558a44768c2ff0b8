"""A mkdocs hook: one reference page per room, written from the tables of public names (`sightline/**/__init__.pyi`)."""

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).parent.parent.parent / "sightline"
TOP = """# Reference

Generated from the docstrings. With `import sightline as sl` these names are at the top:

| name | described in |
|---|---|
{rows}

Everything else is reached by room: `sl.analysis.linear_cka`, `sl.training.transfer`, `sl.data.Augment`. `sl.recipes`
is described under [training](training.md#recipes).
"""


def imports(stub: Path) -> list[tuple[str, str]]:
    """What a stub declares: (name, where from); "" is the stub's own package."""
    nodes = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return [(alias.name, node.module or "") for node in nodes for alias in node.names]


def is_module(stub: Path, name: str, module: str) -> bool:
    place = stub.parent.joinpath(*module.split("."), name)
    return place.is_dir() or place.with_suffix(".py").exists()


def public_names(stub: Path) -> dict[str, str]:
    """Each public function and class of a stub, and the module that defines it."""
    return {name: module for name, module in imports(stub) if not is_module(stub, name, module)}


def first_line(module: Path) -> str:
    return (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n")[0]


def entry(path: str, *options: str) -> str:
    return "\n".join([f"::: {path}", *(["    options:"] if options else []), *(f"      {o}" for o in options)])


def module_section(module: str, stub: Path) -> str:
    """A public module of a room: its own stub's names, or all that the file defines."""
    if stub.exists():
        entries = [entry(f"{module}.{name}") for name in public_names(stub)]
    else:
        entries = [entry(module, "show_root_heading: false", "show_root_toc_entry: false")]
    return "\n\n".join([f"## {stub.parent.name.capitalize()}", *entries])


def room_page(stub: Path) -> str:
    """What the room is for, and every public name in the order of its modules."""
    room = f"sightline.{stub.parent.name}"
    entries = [entry(f"{room}.{name}") for name in public_names(stub)]
    modules = [name for name, module in imports(stub) if is_module(stub, name, module)]
    entries += [module_section(f"{room}.{name}", stub.parent / name / "__init__.pyi") for name in modules]
    return "\n\n".join([f"# {room}", first_line(stub.with_suffix(".py")), *entries])


def top_page(top: dict[str, str]) -> str:
    """Where each of the names at the top is described."""
    rooms = {name: module.split(".")[0] for name, module in top.items()}
    rows = [
        f"| [`sl.{name}`][sightline.{room}.{name}] | [{room}]({room}.md) |"
        for name, room in sorted(rooms.items(), key=lambda item: item[0].lower())
    ]
    return TOP.format(rows="\n".join(rows))


def spec_page() -> str:
    """The value types: every class that `sightline/spec.py` defines."""
    spec = PACKAGE / "spec.py"
    types = [node.name for node in ast.parse(spec.read_text()).body if isinstance(node, ast.ClassDef)]
    return "\n\n".join(["# sightline.spec", first_line(spec), *(entry(f"sightline.spec.{name}") for name in types)])


def pages() -> dict[str, str]:
    """The text of every reference page."""
    rooms = {stub.parent.name: room_page(stub) for stub in sorted(PACKAGE.glob("*/__init__.pyi"))}
    return {"index": top_page(public_names(PACKAGE / "__init__.pyi")), "spec": spec_page(), **rooms}


def on_files(files: Files, config: Any) -> Files:
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files
