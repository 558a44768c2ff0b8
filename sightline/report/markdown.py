"""The page as Markdown: a table of verdicts, and a figure and a sentence for each result."""

from sightline.report.collect import Collection
from sightline.report.page import sentence
from sightline.report.sections import sections
from sightline.studies.verdict import Verdict


def markdown(found: Collection, verdicts: list[Verdict], heading: tuple[str, str]) -> str:
    """The page as Markdown; `heading` is the title and the note below it."""
    lines = [f"# {_cell(heading[0])}", "", *([_cell(heading[1]), ""] if heading[1] else [])]
    if verdicts:
        lines += ["| claim | verdict | models | effect |", "|---|---|---|---|", *map(_verdict_row, verdicts), ""]
    for s in sections(found.entries):
        lines += [f"## {_cell(s.heading)}", ""]
        for e in s.entries:
            lines += [_cell(sentence(e.result)), "", f"![{_cell(e.result.title)}](figures/{e.name}.png)", ""]
            lines += [f"{_cell(e.result.caption)} Data: [{e.name}.npz](data/{e.name}.npz)", ""]
        if s.paper is not None:
            lines += [f"*In the paper ({s.paper.where}):* {s.paper.finding}", ""]
    if found.notices:
        lines += ["## Not on this page", "", *(f"- {_cell(n)}" for n in found.notices), ""]
    return "\n".join(lines)


def _verdict_row(v: Verdict) -> str:
    effects = "; ".join(e.text() for e in v.effects) or v.why()
    models = " and ".join(m for m in v.models if m)
    return f"| {v.claim}: {_cell(v.statement)} | **{v.state}** | {_cell(models)} | {_cell(effects)} |"


def _cell(text: str) -> str:
    """Escape text for Markdown and its tables."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return text.replace("[", "\\[").replace("![", "!\\[")
