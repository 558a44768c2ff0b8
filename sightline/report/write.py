"""`sl.write_report`: write a folder with the page, its figures, its data and a Markdown version."""

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

from sightline.files import atomic, check_in_place, exclusive
from sightline.report.collect import Collection, Given, PageEntry, collect
from sightline.report.figures import Drawing, save_drawing
from sightline.report.markdown import markdown
from sightline.report.page import DAMAGED, Page, attempt, reason, sentence
from sightline.spec import Result, to_json
from sightline.studies.claims import CLAIMS, judge
from sightline.studies.evidence import gather
from sightline.studies.verdict import Verdict

EMBEDDED = 400_000  # bytes of one download embedded in the page
log = logging.getLogger("sightline.report")


def write_report(
    results: Given,
    folder: str | Path,
    title: str = "What these models see",
    *,
    megabytes: float = 9.5,
    note: str = "",
) -> Path:
    """Write one self-contained page about results, and next to it their figures, data, results.json and report.md.

    `results` is a list of results, a dict of named results, files, or folders of `sl.look` and `sl.compare`. The page
    opens from disk, loads nothing, and depends only on the results. What cannot be read is listed on it. Different
    models are told apart by fingerprint, and compared only on the same images. To stay below `megabytes`, the page
    shows the attention of fewer images, and links to data files instead of embedding them. `note` is a line below the
    title, such as image credits.

    >>> import numpy as np, tempfile
    >>> r = sl.analysis.ObjectMass(title="Mass", caption="", mass=np.array([0.6, 0.5]), area=np.array([0.2, 0.1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = sl.write_report([r], folder)
    ...     page.name, sorted(p.name for p in page.parent.iterdir())
    ('report.html', ['data', 'figures', 'report.html', 'report.md', 'results.json'])
    """
    if not megabytes > 0:
        raise ValueError(f"megabytes must be a positive number; got {megabytes!r}.")
    found = collect(results)
    with exclusive(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN, and written as such
        return _write(found, Path(folder), (title, note), int(megabytes * 1e6))


def render_page(results: Given, title: str, *, note: str = "") -> str:
    """One self-contained HTML file as text: the widgets and the data of results, without verdicts and drawn figures.

    For a look at single images, which decide no claim; in a second, and without a folder of files.
    """
    page = Page(title, note, collect(results), [], {})
    with tempfile.TemporaryDirectory() as folder:
        for e in page.found.entries:
            page.downloads[e.name] = e.result.save(Path(folder) / f"{e.name}.npz").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # as above
        return page.render()


def _write(found: Collection, folder: Path, heading: tuple[str, str], limit: int) -> Path:
    """Write the page and the files next to it; `heading` is the title and the note below it."""
    title, note = heading
    verdicts = _verdicts(found)
    drawings = {e.name: drawing for e in found.entries if (drawing := _drawing(e, folder, found)) is not None}
    files = {e.name: e.result.save(folder / "data" / f"{e.name}.npz") for e in found.entries}
    page = Page(title, note, found, verdicts, drawings)
    texts = {
        "results.json": to_json(_results_json(found, verdicts, heading), indent=1, other=str) + "\n",
        "report.md": markdown(found, verdicts, heading),
        "report.html": _embed_downloads(page, files, limit),
    }
    for name, text in texts.items():
        with atomic(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    return folder / "report.html"


def _verdicts(found: Collection) -> list[Verdict]:
    """The verdicts; a claim that fails on these results gets a notice, the others continue."""
    evidence = gather(e.result for e in found.entries if not sentence(e.result).startswith(DAMAGED))
    verdicts: list[Verdict] = []
    for claim in CLAIMS:
        try:
            verdicts += judge(claim, evidence)
        except Exception as error:
            found.notices.append(f"{claim.number} could not be judged ({reason(error)}).")
    return verdicts


def _drawing(e: PageEntry, folder: Path, found: Collection) -> Drawing | None:
    """The figure of a result; one that cannot be drawn gets a notice, the others continue."""
    base = folder / "figures" / e.name
    check_in_place(base)
    try:
        return save_drawing(e.result, base)
    except OSError:  # a problem of the disk, not of the result
        raise
    except Exception as error:
        found.notices.append(f"{e.name} could not be drawn ({reason(error)}).")
        return None


def _embed_downloads(page: Page, files: dict[str, Path], limit: int) -> str:
    """The page with as many embedded downloads as fit, the smallest first."""
    page.room = min(page.room, limit // 5)
    room = limit - len(page.render().encode())
    for name, path in sorted(files.items(), key=lambda item: item[1].stat().st_size):
        size = path.stat().st_size
        room -= size * 4 // 3 + 100
        if size > EMBEDDED or room < 0:
            break
        page.downloads[name] = path.read_bytes()
    text = page.render()
    if len(text.encode()) > limit:
        log.warning("The page has %.1f MB: report fewer results at a time for a smaller one.", len(text) / 1e6)
    return text


def _results_json(found: Collection, verdicts: list[Verdict], heading: tuple[str, str]) -> dict[str, Any]:
    """The contents of results.json: everything but the arrays."""
    rows = [_row(e) for e in found.entries]
    page = {"title": heading[0], "note": heading[1]}
    return {**page, "verdicts": [v.plain() for v in verdicts], "results": rows, "notices": found.notices}


def _row(e: PageEntry) -> dict[str, Any]:
    """One result; for a damaged one without a summary, `says` has the reason."""
    r: Result = e.result
    none: dict[str, float] = {}
    return {
        "name": e.name,
        "type": type(r).__name__,
        "title": r.title,
        "caption": r.caption,
        "about": r.about,
        "says": sentence(r),
        "summary": attempt(r.summary, lambda why: none),
        "how": r.how,
        "data": f"data/{e.name}.npz",
        "figure": f"figures/{e.name}.png",
    }
