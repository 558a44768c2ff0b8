"""Results grouped by question: the sections of the page."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sightline.report.collect import PageEntry
from sightline.spec import ModelId, Result
from sightline.studies.claims import CLAIMS
from sightline.studies.evidence import key
from sightline.studies.verdict import Verdict
from sightline.views.table import FIRST, position, view_of
from sightline.views.view import Paper, View


@dataclass(frozen=True)
class Section:
    """Results that answer the same question on the same images, for one model or several side by side."""

    entries: tuple[PageEntry, ...]
    suffix: str = ""  # added to the heading if another section would have the same one

    @property
    def name(self) -> str:
        """The HTML anchor."""
        return self.entries[0].name

    @property
    def first(self) -> Result:
        return self.entries[0].result

    @property
    def view(self) -> View:
        return view_of(self.first)

    @property
    def heading(self) -> str:
        return self.view.heading_of(self.first) + self.suffix

    @property
    def leads(self) -> bool:
        """Whether it stands before the verdicts: accuracy, and what can be explored on images."""
        return position(self.first) < FIRST

    @property
    def paper(self) -> Paper | None:
        return self.view.paper_of(self.first)

    def verdicts(self, verdicts: list[Verdict]) -> list[Verdict]:
        """The verdicts about these results and their models; a verdict or section without models matches any."""
        numbers = {c.number for c in CLAIMS if c.about(self.first)}
        models = {key(m) for e in self.entries for m in e.result.about.models}
        images = self.first.about.images
        return [
            v
            for v in verdicts
            if v.claim in numbers
            and (not models or not any(v.models) or models & model_keys(v))
            and (not v.images or not images or v.images == images)
        ]


def model_keys(v: Verdict) -> set[str]:
    """The models of a verdict, by the keys that evidence uses."""
    fingerprints = v.fingerprints or ("",) * len(v.models)
    return {key(ModelId(name=name, fingerprint=f)) for name, f in zip(v.models, fingerprints)}


def question(e: PageEntry) -> tuple[Any, ...]:
    """The key that groups results: type, analysis (without the side of a comparison), number of models, images."""
    about = e.result.about
    asked = about.analysis or view_of(e.result).variant(e.result)
    return type(e.result), re.sub(r"-[ab]$", "", asked), len(about.models), about.images


def sections(entries: list[PageEntry]) -> list[Section]:
    """Sections in page order; variants of a kind of result come after the plain one."""
    found: dict[Any, list[PageEntry]] = {}
    for e in entries:
        found.setdefault(question(e), []).append(e)
    made = sorted((Section(tuple(v)) for v in found.values()), key=_order)
    images = {(s.heading, s.first.about.images) for s in made}
    several = Counter(heading for heading, _ in images)
    return [Section(s.entries, f" ({images_label(s.first)})") if several[s.heading] > 1 else s for s in made]


def _order(s: Section) -> tuple[int, bool]:
    return position(s.first), bool(s.view.variant(s.first))


def data_name(r: Result) -> str:
    """The name of the dataset, without its path: a page must not contain local paths."""
    given = r.how.get("data")
    name = str(given.get("name", "")) if isinstance(given, dict) else str(given or "")
    parts = [p for p in name.replace("\\", "/").split("/") if p]
    return "/".join(parts[-2:]) if name.startswith(("/", "~")) or ":" in name[:3] else name


def images_label(r: Result) -> str:
    """Number of images and their dataset; the fingerprint if the dataset is unknown."""
    name = data_name(r) or r.about.images[:8] or "unknown images"
    n = r.how.get("n")
    return f"{n} images of {name}" if isinstance(n, int) else f"images of {name}"
