"""One self-contained HTML file from collected results: images first, then the verdicts, a section per question."""

import base64
import importlib.resources
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline.report.collect import Collection, PageEntry
from sightline.report.figures import WIDTH, Drawing, inline_svg, interval_plot, narrow_drawing
from sightline.report.sections import Section, data_name, data_names, images_label, sections
from sightline.report.sketches import sketch
from sightline.spec import Result, legible, to_json
from sightline.studies.claims import CLAIMS, without_verdict
from sightline.studies.verdict import Verdict
from sightline.views.payload import ROOM
from sightline.views.style import colors
from sightline.views.table import view_of
from sightline.views.view import model_names, with_interval

DAMAGED = "The numbers of this result are inconsistent"
READS = {c.number: [t.__name__ for t in (*c.reads, *c.related)] for c in CLAIMS}  # types of results by claim
STATES = {"holds": "holds", "does not hold": "not", "undecided": "open"}  # and their CSS classes
PLURAL = {"holds": "hold", "does not hold": "do not hold", "undecided": "undecided"}
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

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the datasets, by the fingerprint of their images."""
        return data_names(self.found.entries)

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
            css=Markup((files / "page.css").read_text(encoding="utf-8")),
            js=Markup("".join((files / name).read_text(encoding="utf-8") for name in ("canvas.js", "page.js"))),
            first=[s for s in made if s.get("leads")],
            others=[s for s in made if not s.get("leads")],
            links=[links([s for s in made if bool(s.get("leads")) is leads]) for leads in (True, False)],
            headlines=self.headlines(),
            scripts=self.scripts,
            **self.summary(),
        )

    def lead(self) -> str:
        """How many results, of which models, on which images."""
        entries = self.found.entries
        names = list(dict.fromkeys(n for e in entries for n in model_names(e.result)))
        data = list(dict.fromkeys(d for e in entries if (d := data_name(e.result, self.names))))
        count = f"{len(entries):,} result{'s' * (len(entries) > 1)}"
        models = f" about {enumeration(names)}" if names else ""
        return f"{count}{models}{f', on images of {enumeration(data)}' if data else ''}."

    def headlines(self) -> list[tuple[str, list[Values]]]:
        """How good the models are, a number each, by what was measured on which images: a line before all else."""
        rows: dict[str, list[Values]] = {}
        for s in sections(self.found.entries):
            for e in s.entries:
                made = attempt(partial(self.headline, s.name, e), lambda why: {})
                if made:
                    rows.setdefault(made["of"], []).append(made)
        return list(rows.items())

    def headline(self, section: str, e: PageEntry) -> Values:
        """The number of one measurement, what it is of, and of which model; a link to its section."""
        make = view_of(e.result).headline
        if make is None:
            return {}
        number, what, interval = map(legible, make(e.result))
        images = f" on {images_label(e.result, self.names)}" if data_name(e.result, self.names) else ""
        model = enumeration(model_names(e.result))
        of = f"{what[0].upper()}{what[1:]}{images}"
        return {"section": section, "number": number, "of": of, "interval": interval, "model": model}

    def summary(self) -> Values:
        """Counts, one line per verdict, claims without a verdict, and what is missing from the page."""
        states: list[str] = [v.state for v in self.verdicts]
        groups = self.groups(self.verdicts)
        alarming = ("Left out", "could not", "failed")
        return {
            "counts": [
                (n := states.count(state), state if n == 1 else PLURAL[state], css) for state, css in STATES.items()
            ],
            "groups": [g for g in groups if g["decided"]],
            "undecided": [g for g in groups if not g["decided"]],
            "claims": len(CLAIMS),
            "missing": without_verdict(self.verdicts),
            "notices": self.found.notices,
            "alarm": any(word in n for n in self.found.notices for word in alarming),
        }

    def groups(self, verdicts: list[Verdict]) -> list[Values]:
        """The verdicts by claim, with what each model or pair of models says inside."""
        found: dict[str, list[Verdict]] = {}
        for v in verdicts:
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
        known = {e.result.about.images: images_label(e.result, self.names) for e in reversed(self.found.entries)}
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
            "topic": s.topic,
            "suffix": s.suffix,
            "alone": alone,
            "sentence": sentence(s.first),
            "figures": [self.figure(e, room, beside=len(s.entries) - 1) for e in s.entries],
            "paper": s.paper,
            "sketch": sketch(type(s.first).__name__) if s.paper else None,
            "leads": s.leads,
            "groups": self.groups(s.verdicts(self.verdicts)),
            "details": [{"title": e.result.title} | details(e.result) for e in s.entries],
            "downloads": [(f"{e.name}.npz", self.address(e)) for e in s.entries],
        }

    def figure(self, e: PageEntry, room: int, *, beside: int) -> Values:
        """The widget, the drawing, or both; for several models, each with its name and its sentence. With more than one
        other beside it, there is never room for the wide drawing."""
        text = sentence(e.result)
        alt = f"{e.result.title}. {text}"
        made: Values = {"name": enumeration(model_names(e.result)) or e.result.title, "sentence": text, "alt": alt}
        made |= attempt(lambda: self.widget(e, room), lambda why: {"widget": None, "problem": why})
        made["drawn"] = []
        if e.name in self.drawings and (made["widget"] is None or view_of(e.result).draws_beside_widget(e.result)):
            if e.name not in self.narrow:
                self.narrow[e.name] = attempt(lambda: narrow_drawing(e.result), lambda why: self.drawings[e.name])
            wide = [] if beside > 1 else [self.drawn(self.drawings[e.name], e.name, "wide", alt)]
            slim = self.drawn(self.narrow[e.name], f"{e.name}-slim", "slim only" if beside > 1 else "slim", alt)
            made["drawn"] = [*wide, slim]
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


def links(made: list[Values]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The navigation: each topic once, with a link to its section, or to each of several with what tells them apart."""
    found: dict[str, list[tuple[str, str]]] = {}
    for s in made:
        found.setdefault(s["topic"] if "topic" in s else s["name"], []).append((s["name"], s.get("suffix", "")))
    return list(found.items())


def enumeration(names: list[str]) -> str:
    """Names as a sentence lists them: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 2 else names)


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
        named = {k: data_name(r) for k in ("data", "dataset") if isinstance(r.how.get(k), str)}  # without its path
        how = [(k, plain_text(v)) for k, v in {**r.how, **named}.items() if k not in HIDDEN]
        ends = r.intervals()
        shown = list(r.summary().items())[:24]
        numbers = [(k, legible(with_interval(v, ends.get(k), lambda x: format(x, ".4g")))) for k, v in shown]
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
