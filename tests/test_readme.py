"""What the README tells a newcomer to type really runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: code.strip().splitlines()[-1][:40])
def test_snippets_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_there_are_five_of_them():
    assert len(SNIPPETS) >= 5
