"""Results grouped by question: the sections of the page."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sightline.report.collect import PageEntry
from sightline.spec import ModelId, Result
from sightline.studies.claims import CLAIMS
from sightline.studies.evidence import key
from sightline.studies.verdict import Verdict
from sightline.views.table import FIRST, position, view_of
from sightline.views.view import Paper, View, model_names, pair

SEVERAL = "pairs of models"


@dataclass(frozen=True)
class Section:
    """Results that answer the same question on the same images, for one model or several side by side."""

    entries: tuple[PageEntry, ...]
    suffix: str = ""  # added to the heading if another section has the same topic

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
    def topic(self) -> str:
        """The heading without what tells it from others on the same topic."""
        headings = {self.view.heading_of(e.result) for e in self.entries}
        if len(headings) == 1:
            return headings.pop()
        several = {self.view.heading_of(e.result).replace(pair(e.result) or "\0", SEVERAL) for e in self.entries}
        return several.pop() if len(several) == 1 else self.view.heading

    @property
    def heading(self) -> str:
        return f"{self.topic} · {self.suffix}" if self.suffix else self.topic

    @property
    def leads(self) -> bool:
        """Whether it stands before the verdicts: what can be explored on images, and accuracy."""
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
    made = [Section(tuple(v)) for v in found.values()]
    topics = [s.topic for s in made]
    made.sort(key=lambda s: (position(s.first), bool(s.view.variant(s.first)), topics.index(s.topic)))
    names = data_names(entries)
    return [replace(s, suffix=_suffix(s, [o for o in made if o.topic == s.topic and o is not s], names)) for s in made]


def _suffix(s: Section, others: list[Section], names: dict[str, str]) -> str:
    """What tells a section from others on the same topic, in the fewest words: data, models, number of images."""
    every = [s, *others]
    if not others:
        return ""

    def data(x: Section) -> str:
        return data_name(x.first, names)

    ways: tuple[Callable[[Section], str], ...] = (
        data,
        _models_label if not all(map(data, every)) or len(set(map(data, every))) == 1 else lambda x: "",
        lambda x: f"{data(x)}, {_models_label(x)}" if data(x) else "",
        lambda x: images_label(x.first, names),
        lambda x: f"{_models_label(x)}, {images_label(x.first, names)}",
    )
    apart = (way for way in ways if all(map(way, every)) and len(set(map(way, every))) == len(every))
    return next(apart, ways[-1])(s)


def _models_label(s: Section) -> str:
    names = list(dict.fromkeys(n for e in s.entries for n in model_names(e.result)))
    return " and ".join(names) if len(names) <= 2 else f"{len(names)} models"


def data_names(entries: list[PageEntry]) -> dict[str, str]:
    """The datasets' names by the fingerprint of their images, from results that know it, for others about the same."""
    known = {_whole(e.result.about.images): data_name(e.result) for e in reversed(entries)}
    return {images: name for images, name in known.items() if images and name}


def _whole(images: str) -> str:
    """The fingerprint of the dataset that images are a sample of; of test data where there is training data, too."""
    return re.split(r"-n(?=\d|None)", images.rpartition("+")[2])[0]


def data_name(r: Result, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """The name of the dataset, without its path: a page must not contain local paths. Empty where it is unknown."""
    given = r.how.get("data") or r.how.get("dataset")
    name = str(given.get("name", "")) if isinstance(given, dict) else str(given or "")
    parts = [p for p in name.replace("\\", "/").split("/") if p]
    short = "/".join(parts[-2:]) if name.startswith(("/", "~")) or ":" in name[:3] else name
    return short.rstrip("/") or names.get(_whole(r.about.images), "")


def images_label(r: Result, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Number of images and their dataset; the fingerprint only if nothing on the page knows the dataset."""
    name = data_name(r, names) or r.about.images[:8] or "unknown data"
    n = r.how.get("n") or r.how.get("images")
    return f"{n:,} images of {name}" if isinstance(n, int) else f"images of {name}"
