"""One self-contained HTML file from collected results: the verdicts, then a section per question."""

import base64
import importlib.resources
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline.report.collect import Collection, PageEntry
from sightline.report.figures import WIDTH, Drawing, inline_svg, interval_plot, narrow_drawing
from sightline.report.sections import Section, data_name, images_label, sections
from sightline.report.sketches import sketch
from sightline.spec import Result, legible, to_json
from sightline.studies.claims import CLAIMS, without_verdict
from sightline.studies.verdict import Verdict
from sightline.views.payload import ROOM
from sightline.views.style import colors
from sightline.views.table import view_of
from sightline.views.view import model_names, said

DAMAGED = "The numbers of this result are inconsistent"
READS = {c.number: [t.__name__ for t in (*c.reads, *c.related)] for c in CLAIMS}  # types of results by claim
STATES = {"holds": "holds", "does not hold": "not", "undecided": "open"}  # and their CSS classes
HIDDEN = ("key", "models", "gradient sums", "cells", "predictions")  # entries of `how` that are long or shown elsewhere
T = TypeVar("T")
Values = dict[str, Any]  # the variables of a template


@dataclass
class Page:
    """The contents of a page."""

    title: str
    note: str  # a line below the title
    found: Collection
    verdicts: list[Verdict]
    drawings: dict[str, Drawing]  # by entry
    downloads: dict[str, bytes] = field(default_factory=dict)  # data of each entry that fits into the page
    scripts: dict[str, Markup] = field(default_factory=dict)  # data for the page's script, by id
    narrow: dict[str, Drawing] = field(default_factory=dict)  # the drawings for phones, by entry; drawn when needed
    room: int = ROOM  # bytes for attention

    def render(self) -> str:
        """The HTML file."""
        files = importlib.resources.files("sightline.report")
        self.scripts = {"palette": json_script({"ramp": base64.b64encode(colors().tobytes()).decode()})}
        made = [attempt(partial(self.section, s), partial(broken_section, s)) for s in sections(self.found.entries)]
        template = environment().get_template("page.html")
        return template.render(
            title=self.title,
            note=self.note,
            lead=self.lead(),
            css=Markup((files / "page.css").read_text()),
            js=Markup("".join((files / name).read_text() for name in ("canvas.js", "page.js"))),
            first=[s for s in made if s.get("leads")],
            others=[s for s in made if not s.get("leads")],
            scripts=self.scripts,
            **self.summary(),
        )

    def lead(self) -> str:
        """How many results, of which models, on which images."""
        names = list(dict.fromkeys(n for e in self.found.entries for n in model_names(e.result)))
        data = list(dict.fromkeys(d for e in self.found.entries if (d := data_name(e.result))))
        models = f" on {' and '.join(names)}" if names else ""
        images = f", images of {' and '.join(data)}" if data else ""
        return f"{len(self.found.entries)} results{models}{images}."

    def summary(self) -> Values:
        """Counts, one line per verdict, claims without a verdict, and what is missing from the page."""
        states: list[str] = [v.state for v in self.verdicts]
        groups = self.groups()
        alarming = ("Left out", "could not", "failed")
        return {
            "counts": [(states.count(state), state, css) for state, css in STATES.items()],
            "groups": [g for g in groups if g["decided"]],
            "undecided": [g for g in groups if not g["decided"]],
            "claims": len(CLAIMS),
            "missing": without_verdict(self.verdicts),
            "notices": self.found.notices,
            "alarm": any(word in n for n in self.found.notices for word in alarming),
        }

    def groups(self) -> list[Values]:
        """The verdicts by claim, with what each model or pair of models says inside."""
        found: dict[str, list[Verdict]] = {}
        for v in self.verdicts:
            found.setdefault(v.claim, []).append(v)
        return [
            {
                "claim": claim,
                "statement": same[0].statement,
                "source": same[0].source,
                "decided": any(v.state != "undecided" for v in same),
                "cards": [self.card(v) for v in same],
                "sketch": next((made for kind in READS.get(claim, ()) if (made := sketch(kind))), None),
            }
            for claim, same in found.items()
        ]

    def card(self, v: Verdict) -> Values:
        """A verdict with its effects, and with the images if two verdicts differ only in these."""
        same = Counter((w.claim, w.models) for w in self.verdicts)
        known = {e.result.about.images: images_label(e.result) for e in reversed(self.found.entries)}
        remarks = (v.why(), v.survives(), v.note if v.effects else "")  # without effects, the note is the reason
        return {
            "verdict": v,
            "css": STATES[v.state],
            "models": " and ".join(m for m in v.models if m),
            "images": known.get(v.images, "") if same[v.claim, v.models] > 1 and v.images else "",
            "effects": [(e, interval_plot(e)) for e in v.effects],
            "remarks": [text[0].upper() + text[1:] for text in remarks if text],
        }

    def section(self, s: Section) -> Values:
        """One question: figures with their sentences, the paper's finding, how it was computed, and the data."""
        alone = len(s.entries) == 1
        room = self.room // len(s.entries)
        return {
            "name": s.name,
            "results": " ".join(sorted(e.name for e in s.entries)),
            "heading": s.heading,
            "alone": alone,
            "sentence": sentence(s.first),
            "figures": [self.figure(e, room) for e in s.entries],
            "paper": s.paper,
            "sketch": sketch(type(s.first).__name__) if s.paper else None,
            "leads": s.leads,
            "cards": [self.card(v) for v in s.verdicts(self.verdicts)],
            "details": [{"title": e.result.title} | details(e.result) for e in s.entries],
            "downloads": [(f"{e.name}.npz", self.address(e)) for e in s.entries],
        }

    def figure(self, e: PageEntry, room: int) -> Values:
        """The widget, the drawing, or both; for several models, each with its name and its sentence."""
        text = sentence(e.result)
        alt = f"{e.result.title}. {text}"
        made: Values = {"name": ", ".join(model_names(e.result)) or e.result.title, "sentence": text, "alt": alt}
        made |= attempt(lambda: self.widget(e, room), lambda why: {"widget": None, "problem": why})
        made["drawn"] = []
        if e.name in self.drawings and (made["widget"] is None or view_of(e.result).figure_and_widget):
            if e.name not in self.narrow:
                self.narrow[e.name] = attempt(lambda: narrow_drawing(e.result), lambda why: self.drawings[e.name])
            wide, slim = self.drawings[e.name], self.narrow[e.name]
            made["drawn"] = [self.drawn(wide, e.name, "wide", alt), self.drawn(slim, f"{e.name}-slim", "slim", alt)]
        return made

    def drawn(self, drawing: Drawing, name: str, css: str, alt: str) -> Values:
        """One drawing and its points, for wide or for slim places."""
        source = f"points-{name}" if drawing.points else ""
        if source:
            self.scripts[source] = json_script(drawing.points)
        return {"svg": inline_svg(drawing.svg, name, alt), "points": source, "css": css, "width": drawing.width}

    def widget(self, e: PageEntry, room: int) -> Values:
        """The interactive widget and its data; None if there is only a figure."""
        data = view_of(e.result).payload_of(e.result, room)
        if data is None:
            return {"widget": None, "problem": ""}
        self.scripts[f"data-{e.name}"] = json_script(data)
        return {"widget": data["widget"], "source": f"data-{e.name}", "notice": data.get("notice", ""), "problem": ""}

    def address(self, e: PageEntry) -> str:
        """A link to the data: embedded if it fits, otherwise the file next to the page."""
        if e.name not in self.downloads:
            return f"data/{e.name}.npz"
        return f"data:application/octet-stream;base64,{base64.b64encode(self.downloads[e.name]).decode()}"


@cache
def environment() -> Environment:
    """The template environment; every variable is escaped unless it is Markup."""
    made = Environment(
        loader=PackageLoader("sightline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"damaged": DAMAGED, "plot_width": WIDTH}
    return made


def sentence(r: Result) -> str:
    """The sentence about a result; for a damaged one, that it is damaged."""
    return attempt(lambda: view_of(r).sentence_of(r), lambda why: f"{DAMAGED} ({why}).")


def attempt(make: Callable[[], T], otherwise: Callable[[str], T]) -> T:
    """The result of `make`, or of `otherwise` with the reason: one bad result must not break the page."""
    try:
        return make()
    except Exception as error:
        return otherwise(reason(error))


def reason(error: Exception) -> str:
    """An error message as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def broken_section(s: Section, why: str) -> Values:
    """A section that could not be rendered keeps its place and its name."""
    return {"name": s.name, "results": " ".join(e.name for e in s.entries), "broken": why}


def details(r: Result) -> Values:
    """Caption, how it was computed, and the numbers of the summary."""

    def make() -> Values:
        how = [(k, plain_text(v)) for k, v in r.how.items() if k not in HIDDEN]
        ends = r.intervals()
        shown = list(r.summary().items())[:24]
        numbers = [(k, legible(said(v, ends.get(k), lambda x: format(x, ".4g")))) for k, v in shown]
        return {"caption": r.caption, "how": how, "numbers": numbers, "problem": ""}

    return attempt(make, lambda why: {"problem": why})


def plain_text(value: Any) -> str:
    """A value of `how` as readable text; for long lists, their length."""
    if isinstance(value, tuple | list):
        return ", ".join(map(plain_text, value)) if len(value) <= 12 else f"{len(value)} values"
    if isinstance(value, dict):
        rows = [f"{k}: {plain_text(v)}" for k, v in value.items()]
        return ", ".join(rows) if len(value) <= 8 else f"{len(value)} entries"
    return legible(format(value, ".6g")) if isinstance(value, float) else str(value)


def json_script(data: Any) -> Markup:
    """JSON for a script element, escaped so that it cannot close the element."""
    body = to_json(data, other=list)
    return Markup(body.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
