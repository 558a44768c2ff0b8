"""Write the file tree in docs/architecture.md from the docstrings of the modules: `python docs/tools/tree.py`."""

import ast
import re
from pathlib import Path

PACKAGE = Path("sightline")
PAGE = Path("docs/architecture.md")


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)])\.(?:\s|$)", paragraph)[0].rstrip(".")


def entries(folder: Path, depth: int) -> list[tuple[str, str]]:
    rows = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            rows.append(("  " * depth + path.name + "/", first_sentence(path / "__init__.py")))
            rows += entries(path, depth + 1)
        elif path.suffix == ".py" and (path.name != "__init__.py" or folder == PACKAGE):
            rows.append(("  " * depth + path.name, first_sentence(path)))
    return rows


def main() -> None:
    rows = [("sightline/", "the package"), *entries(PACKAGE, 1)]
    block = "```tree\n" + "\n".join(f"{name:<36} {sentence}" for name, sentence in rows) + "\n```"
    PAGE.write_text(
        re.sub(r"```tree\n.*?```", lambda _: block, PAGE.read_text(encoding="utf-8"), flags=re.DOTALL), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
