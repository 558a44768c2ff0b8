"""`sl.write_report`: results in, a folder with the page, its figures, its data and a Markdown version out."""

import io
import logging
import warnings
from pathlib import Path
from typing import Any

from sightline.report.collect import Collection, Entry, Given, collect
from sightline.report.page import DAMAGED, Drawing, Page, reason, said
from sightline.report.sections import groups
from sightline.spec import Result, atomic, pack, to_json
from sightline.studies.claims import CLAIMS, judged
from sightline.studies.evidence import gather
from sightline.studies.verdict import Verdict
from sightline.views.draw import draw
from sightline.views.points import points
from sightline.views.style import styled

EMBEDDED = 400_000  # bytes of one download within the page
log = logging.getLogger("sightline.report")


def write_report(
    results: Given,
    folder: str | Path,
    title: str = "What these models see",
    *,
    megabytes: float = 9.5,
    note: str = "",
) -> Path:
    """Write one self-contained page about results, and beside it their figures, data, results.json and report.md.

    `results`: results, names with results, files, or folders of `sl.look` and `sl.compare`. The page opens from disk,
    loads nothing, and depends on the results alone. What cannot be read is told on it. To stay below so many
    `megabytes` it shows the attention of fewer images, and links to data beside it instead of holding it. `note` is a
    line below its title, such as whose photographs are shown.

    >>> import numpy as np, tempfile
    >>> r = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6, 0.5]), area=np.array([0.2, 0.1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = sl.write_report([r], folder)
    ...     page.name, sorted(p.name for p in page.parent.iterdir())
    ('report.html', ['data', 'figures', 'report.html', 'report.md', 'results.json'])
    """
    if not megabytes > 0:
        raise ValueError(f"megabytes is a number above 0; got {megabytes!r}.")
    found = collect(results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing are NaN, and are written so
        return _written(found, Path(folder), (title, note), int(megabytes * 1e6))


def _written(found: Collection, folder: Path, heading: tuple[str, str], limit: int) -> Path:
    """The page and what stands beside it; `heading` is its title and the line below."""
    verdicts = _judged(found)
    drawings = {e.name: drawing for e in found.entries if (drawing := _drawn(e, folder, found)) is not None}
    for e in found.entries:
        e.result.save(folder / "data" / f"{e.name}.npz")
    text = _fitted(Page(heading, found, verdicts, drawings), limit)
    _text(folder / "results.json", to_json(plain(found, verdicts, heading), indent=1, other=str) + "\n")
    _text(folder / "report.md", markdown(found, verdicts, heading))
    return _text(folder / "report.html", text)


def _judged(found: Collection) -> list[Verdict]:
    """The verdicts of what is sound; a claim that these numbers break is told, the others go on."""
    evidence = gather(e.result for e in found.entries if not said(e.result).startswith(DAMAGED))
    verdicts: list[Verdict] = []
    for claim in CLAIMS:
        try:
            verdicts += judged(claim, evidence)
        except Exception as error:
            found.notices.append(f"{claim.number} could not be judged ({reason(error)}).")
    return verdicts


def _drawn(e: Entry, folder: Path, found: Collection) -> Drawing | None:
    """The figure as .png with its title, and as .svg without, as the page shows it under a heading of its own.

    A result that cannot be drawn is told, the others go on.
    """
    base = folder / "figures"
    try:
        with styled():
            figure = draw(e.result)
            with atomic(base / f"{e.name}.png") as partial:
                figure.savefig(partial, format="png", dpi=110)
            untitled(figure, e.result.title)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
            drawing = Drawing(buffer.getvalue(), points(figure))
    except OSError:  # the disk, not the result
        raise
    except Exception as error:
        found.notices.append(f"{e.name} could not be drawn ({reason(error)}).")
        return None
    _text(base / f"{e.name}.svg", drawing.svg)
    return drawing


def untitled(figure: Any, title: str) -> None:
    """Take the title away again."""
    if figure.get_suptitle():
        figure.suptitle("")
    for ax in figure.axes:
        if ax.get_title() == title:
            ax.set_title("")


def _fitted(page: Page, limit: int) -> str:
    """The page with as many downloads in it as there is room for, the smallest first."""
    page.head_attention = min(page.head_attention, limit // 5)
    room = limit - len(page.render().encode())
    packed = {e.name: compact(e.result) for e in page.found.entries}
    for name, data in sorted(packed.items(), key=lambda item: len(item[1])):
        room -= len(data) * 4 // 3 + 100
        if len(data) > EMBEDDED or room < 0:
            break
        page.downloads[name] = data
    text = page.render()
    if len(text.encode()) > limit:
        log.warning("The page has %.1f MB: report fewer results at a time for a smaller one.", len(text) / 1e6)
    return text


def compact(r: Result) -> bytes:
    """The file of a result as bytes."""
    buffer = io.BytesIO()
    pack(r, buffer)
    return buffer.getvalue()


def _text(path: Path, text: str) -> Path:
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def plain(found: Collection, verdicts: list[Verdict], heading: tuple[str, str]) -> dict[str, Any]:
    """Everything but the arrays."""
    rows = [
        {
            "name": e.name,
            "type": type(e.result).__name__,
            "title": e.result.title,
            "caption": e.result.caption,
            "says": said(e.result),
            "summary": _summed(e.result),
            "how": e.result.how,
            "data": f"data/{e.name}.npz",
            "figure": f"figures/{e.name}.png",
        }
        for e in found.entries
    ]
    about = {"title": heading[0], "note": heading[1]}
    return {**about, "verdicts": [v.plain() for v in verdicts], "results": rows, "notices": found.notices}


def _summed(r: Result) -> dict[str, float]:
    """The summary; of a damaged result none, and `says` has the reason."""
    try:
        return r.summary()
    except Exception:
        return {}


def markdown(found: Collection, verdicts: list[Verdict], heading: tuple[str, str]) -> str:
    """The page without its script: verdicts as a table, a figure and a sentence per result."""
    lines = [f"# {_cell(heading[0])}", "", *([_cell(heading[1]), ""] if heading[1] else [])]
    if verdicts:
        lines += ["| claim | verdict | models | effect |", "|---|---|---|---|"]
        for v in verdicts:
            effects = "; ".join(e.text() for e in v.effects)
            models = " and ".join(m for m in v.models if m)
            lines.append(f"| {v.claim}: {_cell(v.statement)} | **{v.state}** | {_cell(models)} | {_cell(effects)} |")
        lines.append("")
    for g in groups(found.entries):
        lines += [f"## {_cell(g.heading)}", ""]
        for e in g.entries:
            lines += [_cell(said(e.result)), "", f"![{_cell(e.result.title)}](figures/{e.name}.png)", ""]
            lines += [f"{_cell(e.result.caption)} Data: [{e.name}.npz](data/{e.name}.npz)", ""]
        where, told = g.paper
        if told:
            lines += [f"*In the paper ({where}):* {told}", ""]
    if found.notices:
        lines += ["## Not on this page", "", *(f"- {_cell(n)}" for n in found.notices), ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that stays text within Markdown and its tables."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return text.replace("[", "\\[").replace("![", "!\\[")
