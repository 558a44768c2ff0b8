"""The parts of the page: results grouped by question, their pieces as HTML. Every name is escaped."""

import math
import re
from dataclasses import dataclass
from html import escape
from typing import Any

from sightline.analysis.receptive_fields import ReceptiveField
from sightline.analysis.similarity.block_similarity import BlockSimilarity
from sightline.analysis.similarity.cka import CKA
from sightline.report.collect import Entry
from sightline.report.papers import Topic, place, topic
from sightline.spec import Result, legible
from sightline.studies.verdict import Effect, Verdict
from sightline.views.style import INK, models_of

STATES = {"holds": "holds", "does not hold": "not", "undecided": "open"}


@dataclass(frozen=True)
class Group:
    """Results that answer the same question, of one model or of several side by side."""

    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        """The anchor."""
        return self.entries[0].name

    @property
    def topic(self) -> Topic:
        return topic(self.entries[0].result)

    @property
    def claims(self) -> tuple[str, ...]:
        """Those of the topic that this group, and not its neighbor of the same type, is about."""
        first = self.entries[0].result
        if isinstance(first, CKA):
            pooled = first.about.analysis == "cka-pooled"
            return () if pooled else ("C3", "C4") if len(models_of(first)) == 2 else ("C1", "C2")
        if isinstance(first, ReceptiveField):
            return ("C9",) if first.side == "before" else ("C8",)
        return self.topic.claims

    @property
    def paper(self) -> tuple[str, str]:
        """Where and what, unless the result is of a type that the paper uses for another question."""
        first = self.entries[0].result
        other = isinstance(first, BlockSimilarity) and first.varied != "data"
        return ("", "") if other else (self.topic.where, self.topic.found)

    @property
    def heading(self) -> str:
        more = variant(self.entries[0].result)
        return f"{self.topic.heading}: {more}" if more else self.topic.heading


def variant(r: Result) -> str:
    """What tells apart two results of one type."""
    kind, side, block = r.how.get("kind"), getattr(r, "side", ""), r.how.get("block")
    if isinstance(kind, str):
        return f"rollout {kind}"
    if side == "before":
        return "before the addition"
    if isinstance(block, int) and r.how.get("query"):
        return f"block {block}"
    two = models_of(r)
    if len(two) == 2:
        pooled = ", mean over places" if r.how.get("tokens") in (("gap", "gap"), ["gap", "gap"]) else ""
        return f"{two[0]} and {two[1]}{pooled}"
    return ""


def question(e: Entry) -> tuple[Any, ...]:
    """What groups results: type, analysis (without the side of a comparison), and about how many models it is."""
    asked = str(e.result.about.analysis or variant(e.result))
    return type(e.result), re.sub(r"-[ab]$", "", asked), len(models_of(e.result))


def groups(entries: list[Entry]) -> list[Group]:
    """In the order of the page."""
    found: dict[Any, list[Entry]] = {}
    for e in entries:
        found.setdefault(question(e), []).append(e)
    return sorted(
        (Group(tuple(v)) for v in found.values()),
        key=lambda g: (place(g.entries[0].result), getattr(g.entries[0].result, "side", "") == "before"),
    )


def inline_svg(svg: str, name: str, alt: str) -> str:
    """A drawing of matplotlib's as part of the page: in the page's ink, its parts renamed, with an alt text."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'\b(id|xlink:href|href)="(#?)(?!data:)', rf'\g<1>="\g<2>{name}-', body)
    body = body.replace("url(#", f"url(#{name}-")
    for ink in (INK, INK.upper()):
        body = body.replace(ink, "currentColor")
    body = re.sub(r' (?:width|height)="[\d.]+pt"', "", body, count=2)
    return body.replace("<svg ", f'<svg role="img" aria-label="{escape(alt, quote=True)}" ', 1)


def plot(e: Effect) -> str:
    """An interval as a small image: the bound dashed, the claimed side shaded."""
    ends = [x for x in (e.low, e.high, e.value, e.bound) if math.isfinite(x)]
    if not math.isfinite(e.value):
        return ""
    low, high = min(ends), max(ends)
    pad = (high - low) * 0.15 or max(abs(high), 1) * 0.15
    low, high = low - pad, high + pad

    def at(x: float) -> float:
        return 300 * (x - low) / (high - low)

    side = (at(e.bound), 300.0) if e.side == "above" else (0.0, at(e.bound))
    parts = [
        f'<rect x="{side[0]:.1f}" y="2" width="{side[1] - side[0]:.1f}" height="16" fill="#009e73" opacity=".13"/>'
    ]
    parts.append(
        f'<path d="M{at(e.bound):.1f} 1V19" stroke="currentColor" stroke-dasharray="3 3" opacity=".7" fill="none"/>'
    )
    if math.isfinite(e.low) and math.isfinite(e.high) and e.high > e.low:
        parts.append(f'<path d="M{at(e.low):.1f} 10H{at(e.high):.1f}" stroke="currentColor" stroke-width="3"/>')
    parts.append(f'<circle cx="{at(e.value):.1f}" cy="10" r="5" fill="currentColor"/>')
    return f'<svg viewBox="0 0 300 20" aria-hidden="true">{"".join(parts)}</svg>'


def effect(e: Effect) -> str:
    wrong = ' class="wrong"' if e.state == "does not hold" else ""
    return f'<div class="effect"><small{wrong}>{escape(e.text())} → {e.state}</small>{plot(e)}</div>'


def card(v: Verdict, *, folded: bool = False) -> str:
    """One verdict with its effects; folded, only its first line."""
    about = f" · {escape(' and '.join(m for m in v.models if m))}" if any(v.models) else ""
    head = f'<span class="state {STATES[v.state]}">{v.claim} {v.state}</span><small>{about}</small>'
    says = f"<p>{escape(v.statement)}</p>"
    why = f" {escape(v.why())}." if v.why() else ""
    note = f" {escape(v.note)}." if v.note else ""
    seeds = f"{v.seeds} {'seed' if v.seeds == 1 else 'seeds'} (needed: {v.needs})."
    rest = "".join(effect(e) for e in v.effects) + f"<small>{escape(v.source)}. {seeds}{why}{note}</small>"
    state = STATES[v.state]
    if folded:
        return f'<details class="verdict {state}"><summary>{head}{says}</summary>{rest}</details>'
    return f'<div class="verdict {state}">{head}{says}{rest}</div>'


def how_table(r: Result) -> str:
    """How it was computed, as rows."""
    hidden = ("key", "models", "gradient sums", "cells")
    rows = [(k, v) for k, v in r.how.items() if k not in hidden]
    cells = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(text(v))}</td></tr>" for k, v in rows)
    numbers = "".join(
        f"<tr><td>{escape(k)}</td><td>{legible(format(v, '.4g'))}</td></tr>" for k, v in list(r.summary().items())[:24]
    )
    return f"<p>{escape(r.caption)}</p><table>{cells}</table><table>{numbers}</table>"


def text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(text, value)) if len(value) <= 12 else f"{len(value)} values"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {text(v)}" for k, v in value.items()) if len(value) <= 8 else f"{len(value)} entries"
    return legible(format(value, ".6g")) if isinstance(value, float) else str(value)
