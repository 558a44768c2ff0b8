"""One HTML file from collected results: summary and verdicts, then a section per question. No file but itself."""

import base64
import importlib.resources
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

from sightline.report.collect import Collection, Entry
from sightline.report.payload import ALSO_DRAWN, GAZE, payload
from sightline.report.sections import Group, card, groups, how_table, inline_svg
from sightline.report.sentences import sentence
from sightline.spec import Result, to_json
from sightline.studies.claims import CLAIMS, unjudged
from sightline.studies.verdict import Verdict
from sightline.views.style import colors, models_of

DAMAGED = "The numbers of this result do not fit together"
ABOUT = "A verdict is about these models on these images; a small model, or one trained for minutes, refutes no paper."
MANY = 12  # verdicts that stand open above the images


@dataclass(frozen=True)
class Drawing:
    """A figure, and what its points say when they are pointed at."""

    svg: str
    points: list[tuple[float, float, str]]


@dataclass
class Page:
    """What the page is made of."""

    heading: tuple[str, str]  # the title, and a line below it
    found: Collection
    verdicts: list[Verdict]
    drawings: dict[str, Drawing]  # by entry
    downloads: dict[str, bytes] = field(default_factory=dict)  # data by entry, where there is room
    sources: list[str] = field(default_factory=list)
    head_attention: int = GAZE  # bytes for attention

    def render(self) -> str:
        """The whole file."""
        self.sources = []
        title, note = map(escape, self.heading)
        below = f'<p class="small">{note}</p>' if note else ""
        sections = groups(self.found.entries)
        body = "".join(guarded(partial(self.section, g), partial(broken, g)) for g in sections)
        links = "".join(f'<a href="#{escape(g.name)}">{escape(g.heading)}</a>' for g in sections)
        ramp = base64.b64encode(colors().tobytes()).decode()
        files = importlib.resources.files("sightline.report")
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<style>{(files / 'page.css').read_text()}</style></head><body>"
            f'<header class="top"><h1>{title}</h1><p class="lead">{escape(self.lead())}</p>{below}</header>'
            f'<nav aria-label="Sections"><div><button id="theme" type="button">Light / dark</button>'
            f'<a href="#summary">Summary</a>{links}</div></nav><main>{self.summary()}{body}</main>'
            "<footer>Made by Sightline from saved results; nothing on this page is loaded from elsewhere. "
            "Bounds of the verdicts are ours, not the papers'.</footer>"
            f"{tagged('palette', {'ramp': ramp})}{''.join(self.sources)}"
            f"<script>{(files / 'page.js').read_text()}</script></body></html>\n"
        )

    def lead(self) -> str:
        """Which models, which images, how many results."""
        names = list(dict.fromkeys(n for e in self.found.entries for n in models_of(e.result)))
        data = list(dict.fromkeys(d for e in self.found.entries if (d := data_name(e.result))))
        about = f" on {' and '.join(names)}" if names else ""
        seen = f", images of {' and '.join(short_path(d) for d in data)}" if data else ""
        return f"{len(self.found.entries)} results{about}{seen}."

    def summary(self) -> str:
        """Counts, every verdict in a line, and what could not be judged."""
        states: list[str] = [v.state for v in self.verdicts]
        counts = "".join(
            f'<div class="count {css}"><b>{states.count(state)}</b>{state}</div>'
            for state, css in (("holds", "holds"), ("does not hold", "not"), ("undecided", "open"))
        )
        first = self.verdicts
        if len(first) > MANY:  # decided ones before open ones, and soon the images
            first = sorted(first, key=lambda v: v.state == "undecided")
        cards = "".join(card(v, folded=True) for v in first[:MANY])
        more = "".join(card(v, folded=True) for v in first[MANY:])
        if more:
            more = f'<summary>{len(first) - MANY} more verdicts</summary><div class="verdicts">{more}</div>'
            more = f"<details>{more}</details>"
        open_ = "".join(f"<li>{k}: {escape(w)}</li>" for k, w in unjudged(self.verdicts).items())
        rest = f"<details><summary>{len(CLAIMS)} claims are known here; what would decide the others</summary>"
        rest += f'<ul class="notices">{open_}</ul></details>' if open_ else "</details>"
        told = "".join(f"<li>{escape(n)}</li>" for n in self.found.notices)
        shown = " open" if any(w in n for n in self.found.notices for w in ("Left out", "could not", "failed")) else ""
        notices = (
            f'<details{shown}><summary>Not on this page</summary><ul class="notices">{told}</ul></details>'
            if told
            else ""
        )
        none = "" if self.verdicts else "<p>None of these results decides a claim of the papers.</p>"
        return (
            '<section class="summary" id="summary"><h2>The papers’ claims, held against these results</h2>'
            f'<div class="counts">{counts}</div><p class="small">{ABOUT}</p>{none}<div class="verdicts">{cards}</div>'
            f"{more}{rest}{notices}</section>"
        )

    def section(self, group: Group) -> str:
        """One question: figures first, what they show, the paper beside, how it was computed, the data."""
        single = len(group.entries) == 1
        room = self.head_attention // len(group.entries)
        figures = "".join(self.figure(e, alone=single, room=room) for e in group.entries)
        names = {e.name for e in group.entries}
        judged = [v for v in self.verdicts if v.claim in group.claims and self.concerns(v, group)]
        paper = ""
        where, found = group.paper
        if found:
            paper = f'<div class="paper"><h3>In the paper ({escape(where)})</h3><p>{escape(found)}</p></div>'
        beside = paper + "".join(card(v) for v in judged)
        details = "".join(
            f"<h3>{escape(e.result.title)}</h3>{guarded(partial(how_table, e.result), damaged)}" for e in group.entries
        )
        links = " · ".join(self.download(e) for e in group.entries)
        wide = " single" if single else ""
        return (
            f'<section class="result" id="{escape(group.name)}" data-results="{escape(" ".join(sorted(names)))}">'
            f"<h2>{escape(group.heading)}</h2>"
            + (f'<p class="says">{escape(said(group.entries[0].result))}</p>' if single else "")
            + f'<div class="pair{wide}">{figures}</div>'
            + (f'<div class="beside">{beside}</div>' if beside else "")
            + f"<details><summary>How this was computed</summary>{details}</details>"
            + f'<p class="small">Download data: {links}</p></section>'
        )

    def concerns(self, v: Verdict, group: Group) -> bool:
        """Whether a verdict is about models of this section; one without names is about all."""
        names = {n for e in group.entries for n in models_of(e.result)}
        return not names or not any(v.models) or bool(names & set(v.models))

    def figure(self, e: Entry, *, alone: bool, room: int) -> str:
        """The widget, or the drawing, or both; of several models each with its name and its sentence."""
        told = said(e.result)
        name = ", ".join(models_of(e.result)) or e.result.title
        head = "" if alone else f'<h3>{escape(name)}</h3><p class="small">{escape(told)}</p>'
        alt = f"{e.result.title}. {told}"
        inside = guarded(lambda: self.widget(e, alt, room), unseen)
        if e.name in self.drawings and ("data-widget" not in inside or isinstance(e.result, ALSO_DRAWN)):
            drawing = self.drawings[e.name]
            told_by = f' data-points="points-{escape(e.name)}"' if drawing.points else ""
            inside += f'<figure class="drawn"{told_by}>{inline_svg(drawing.svg, e.name, alt)}</figure>'
            if drawing.points:
                self.sources.append(tagged(f"points-{e.name}", drawing.points))
        return f'<figure class="of">{head}{inside}</figure>'

    def widget(self, e: Entry, alt: str, room: int) -> str:
        """The interactive view and its data; empty where the figure is all there is."""
        data = payload(e.result, room)
        if data is None:
            return ""
        self.sources.append(tagged(f"data-{e.name}", data))
        notice = f'<p class="small">{escape(data["notice"])}</p>' if data.get("notice") else ""
        return (
            f'<div data-widget="{data["widget"]}" data-source="data-{escape(e.name)}" '
            f'data-alt="{escape(alt, quote=True)}"></div>'
            f"<noscript><p>The interactive view needs JavaScript; the figure is in figures/.</p></noscript>{notice}"
        )

    def download(self, e: Entry) -> str:
        """The data itself where there is room for it, else the file beside the page."""
        file = f"{e.name}.npz"
        if e.name in self.downloads:
            data = base64.b64encode(self.downloads[e.name]).decode()
            where = f"data:application/octet-stream;base64,{data}"
        else:
            where = f"data/{file}"
        return f'<a download="{escape(file)}" href="{escape(where)}">{escape(file)}</a>'


def said(r: Result) -> str:
    """The sentence; a result that is damaged says so."""
    return guarded(lambda: sentence(r), lambda why: f"{DAMAGED} ({why}).")


def guarded(make: Callable[[], str], otherwise: Callable[[str], str]) -> str:
    """What is made, or what stands in its place, with the reason: one bad result must not take the page along."""
    try:
        return make()
    except Exception as error:
        return otherwise(reason(error))


def reason(error: Exception) -> str:
    """In one line."""
    return " ".join(str(error).split()) or type(error).__name__


def damaged(why: str) -> str:
    return f'<p class="small">{escape(DAMAGED)} ({escape(why)}).</p>'


def unseen(why: str) -> str:
    return f'<p class="small">The interactive view could not be made ({escape(why)}).</p>'


def broken(group: Group, why: str) -> str:
    """A section that could not be made keeps its place and its name."""
    name, results = escape(group.name), " ".join(e.name for e in group.entries)
    return (
        f'<section class="result" id="{name}" data-results="{escape(results)}"><h2>{name}</h2>{damaged(why)}</section>'
    )


def tagged(name: str, data: Any) -> str:
    """JSON for the script; nothing in it can end the element."""
    body = to_json(data, other=list)
    body = body.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{escape(name)}">{body}</script>'


def data_name(r: Result) -> str:
    """What the images are called, where a result says so."""
    told = r.how.get("data")
    return str(told.get("name", "")) if isinstance(told, dict) else str(told or "")


def short_path(name: str) -> str:
    """The end of a path: a page must not tell where it was made."""
    parts = [p for p in name.replace("\\", "/").split("/") if p]
    return "/".join(parts[-2:]) if name.startswith(("/", "~")) or ":" in name[:3] else name
