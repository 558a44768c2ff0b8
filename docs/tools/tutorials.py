"""Tutorial notebooks: run them without Jupyter, and show them on the site (a mkdocs hook).

    python docs/tools/tutorials.py docs/tutorials/papers.ipynb [name=value ...]

runs the cells of a notebook one after the other and saves what they show. The values replace those of the cell that is
tagged `parameters`. The cells are plain Python, so this needs no kernel; a notebook opens in Jupyter as any other.
"""

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "tutorials"
Cell = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, notebook: dict[str, Any]) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(notebook: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """The notebook with fresh outputs; an error in a cell is raised."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells: list[Cell] = []
    for count, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] == "code":
            cell = {**cell, "execution_count": count, "outputs": outputs("".join(cell["source"]), scope, count)}
            if "parameters" in cell["metadata"].get("tags", ()):
                scope |= parameters
        cells.append(cell)
    return {**notebook, "cells": cells}


def outputs(source: str, scope: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one cell: what it prints, and how its last expression shows itself."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), scope)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
    said: list[dict[str, Any]] = []
    if text := printed.getvalue():
        said.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        said.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": show(value)})
    return said


def show(value: Any) -> dict[str, Any]:
    """What a notebook asks an object for."""
    data: dict[str, Any] = {"text/plain": [f"<{type(value).__name__}>"]}
    if (html := getattr(value, "_repr_html_", lambda: None)()) is not None:
        return data | {"text/html": html.splitlines(keepends=True)}
    if (png := getattr(value, "_repr_png_", lambda: None)()) is not None:
        return data | {"image/png": base64.b64encode(png).decode()}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def to_markdown(notebook: dict[str, Any], name: str) -> str:
    """The notebook as a page of the site."""
    parts = [cell_text(cell) for cell in notebook["cells"]]
    return "\n\n".join([parts[0], f"[This page as a notebook]({name})", *parts[1:]]) + "\n"


def cell_text(cell: Cell) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(output_text, cell["outputs"])])


def output_text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:  # a blank line would end the block of HTML
        lines = [line.strip() for line in "".join(data["text/html"]).splitlines()]
        return "\n".join(['<div class="output">', *filter(None, lines), "</div>"])
    if "image/png" in data:
        return f'<div class="output"><img alt="figure" src="data:image/png;base64,{data["image/png"]}"></div>'
    return f"```text\n{''.join(data.get('text/plain') or output['text']).rstrip()}\n```"


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path in sorted(FOLDER.glob("*.ipynb")):
        text = to_markdown(read(path), path.name)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
    return files


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[2:])
    values = {k: int(v) if v.isdigit() else {"True": True, "False": False}.get(v, v) for k, v in given.items()}
    place = Path(sys.argv[1]).resolve()
    write(place, run(read(place), **values))
