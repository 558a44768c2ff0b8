"""What a view is: heading, counterpart in the papers, sentence, drawing and widget of one kind of result."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sightline.spec import Result, legible

Size = tuple[float, float]  # inches
Payload = dict[str, Any]  # for the page's script
VIT, RAGHU = "ViT 2020", "Raghu et al. 2021"


def model_names(r: Result) -> list[str]:
    """The display names of the models that a result is about."""
    return [m.name for m in r.about.models]


def captions(r: Result, count: int) -> list[str]:
    """What the model says of each of the first images, such as "beagle (83 %)"; empty for results that do not say."""
    said = r.how.get("predictions")
    return [_PROBABILITY.sub(r" (\1)", str(text)) for text in said[:count]] if isinstance(said, list | tuple) else []


_PROBABILITY = re.compile(r" ([\d.]+ %)$")


def counted(name: str) -> str:
    """A block, head or layer as people name and count it: functions count from 0, pages and figures from 1.

    Paths of known form become words; any other path stays.

    >>> [counted(name) for name in ("block 0", "head 0.1", "blocks.11.attn_sum", "stages.2.units.0.sum", "fc1.0")]
    ['block 1', 'head 2 of block 1', 'block 12 after attention', 'unit 1 of stage 3', 'fc1.0']
    """
    for form, words in _FORMS:
        if found := form.fullmatch(name):
            return words(found)
    return name


def in_front(name: str) -> str:
    """The same at the beginning of a sentence or as a label; a path of unknown form stays."""
    words = counted(name)
    return name if words == name else words[0].upper() + words[1:]


def _next(text: str) -> int:
    return int(text) + 1


# what a module within a block or a unit is called, {} being that block or unit
_INSIDE = {
    "": "the output of {}",
    ".mlp_sum": "the output of {}",
    ".attn_sum": "{} after attention",
    ".mix_sum": "{} after token mixing",
    ".attn_branch": "the attention branch of {}",
    ".mix_branch": "the token-mixing branch of {}",
    ".mlp_branch": "the MLP branch of {}",
    ".mlp.hidden": "the MLP's hidden layer in {}",
    ".mix.hidden": "the token-mixing MLP's hidden layer in {}",
    ".attn.q": "the queries of {}",
    ".attn.k": "the keys of {}",
    ".attn.v": "the values of {}",
    ".attn.probs": "the attention of {}",
    ".attn.per_head": "the heads of {}",
    ".branch": "the branch of {}",
    ".sum": "{}",
}


def _inside(place: str, rest: str) -> str:
    if found := re.fullmatch(r"\.(norm|bn|conv)(\d)", rest):
        return f"{'convolution' if found[1] == 'conv' else 'norm'} {found[2]} of {place}"
    return _INSIDE[rest].format(place)


# what a model has once
_ONCE = {
    "encoder_input": "the encoder's input",
    "embed": "the patch embedding",
    "root": "the root",
    "root_norm": "the norm of the root",
    "second_norm": "the norm of the second convolution",
    "norm": "the final norm",
    "pooled": "the pooled features",
    "head": "the class scores",
}

_REST = r"((?:\.(?:norm|bn|conv)\d|" + "|".join(re.escape(end) for end in _INSIDE if end) + r")?)"
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"(block|skip) (\d+)"), lambda m: f"{m[1]} {_next(m[2])}"),
    (re.compile(r"head (\d+)\.(\d+)"), lambda m: f"head {_next(m[2])} of block {_next(m[1])}"),
    (re.compile(r"(?:inner\.|backbone\.)*(" + "|".join(_ONCE) + ")"), lambda m: _ONCE[m[1]]),
    (re.compile(r"(?:inner\.)?blocks\.(\d+)" + _REST), lambda m: _inside(f"block {_next(m[1])}", m[2])),
    (
        re.compile(r"(?:inner\.|backbone\.)*stages\.(\d+)\.(unit|block)s\.(\d+)" + _REST),
        lambda m: _inside(f"{m[2]} {_next(m[3])} of stage {_next(m[1])}", m[4]),
    ),
    (  # torchvision and timm count the stages of a ResNet from 1
        re.compile(r"(?:inner\.)?layer(\d)\.(\d+)" + _REST),
        lambda m: _inside(f"unit {_next(m[2])} of stage {m[1]}", m[3]).removeprefix("the output of "),
    ),
)


def pair(r: Result) -> str:
    """The two models of a comparison; empty for anything else."""
    names = model_names(r)
    return f"{names[0]} and {names[1]}" if len(names) == 2 else ""


def percent(x: float) -> str:
    """A share in text."""
    return f"{100 * x:.0f} %" if abs(x) >= 0.1 or x == 0 else f"{100 * x:.1f} %"


Show = Callable[[float], str]


SMALLEST = 1e-6  # what is smaller is rounding, and stays 0.00


def two_digits(x: float) -> str:
    """A number such as CKA in text."""
    return f"{x:z.2f}"


def one_digit(x: float) -> str:
    """A number such as a ratio in text; one below 1 has two digits."""
    return f"{x:z.1f}" if abs(x) >= 1 or x == 0 else f"{x:z.2f}"


def whole(x: float) -> str:
    """A count in text."""
    return f"{x:z.0f}"


def pixels(x: float) -> str:
    """A distance in pixels in text."""
    return f"{x:.0f}" if abs(x) >= 20 else f"{x:.1f}"


def points(x: float) -> str:
    """An accuracy in text."""
    return f"{100 * x:.1f} %"


def with_interval(
    value: float, ends: tuple[float, float] | None, show: Show = two_digits, *, inside: bool = False
) -> str:
    """A number with its 95 % interval, "0.71 (0.69 to 0.73)"; the number alone where it has none. `inside` of brackets
    there is a comma instead.

    >>> with_interval(0.71, (0.69, 0.73)), with_interval(0.5, None), with_interval(0.5, (0.4, 0.6), inside=True)
    ('0.71 (0.69 to 0.73)', '0.50', '0.50, 0.40 to 0.60')

    Where two digits would make all of it zero, there are more: "0.0008 (0.0004 to 0.0011)", not "0.00 (0.00 to 0.00)".
    """
    if ends is None or not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
        return show(value)
    largest = max(abs(value), *map(abs, ends))
    if show is two_digits and SMALLEST < largest < 0.005:
        digits = 1 - math.floor(math.log10(largest))
        return with_interval(value, ends, lambda x: f"{x:z.{digits}f}", inside=inside)
    range_ = f"{show(ends[0])} to {show(ends[1])}"
    return f"{show(value)}, {range_}" if inside else f"{show(value)} ({range_})"


def crossing(at: float, band: tuple[float, float] | None) -> str:
    """Where two curves over additions cross: between two of them, or at one; additions count from 1.

    >>> crossing(18.6, None), crossing(7.0, None), crossing(18.6, (17.2, 20.0))
    ('between additions 18 and 19', 'at addition 7', 'between additions 18 and 19 (17.2 to 20.0)')
    """
    low, high = math.floor(at), math.ceil(at)
    where = f"at addition {low}" if low == high else f"between additions {low} and {high}"
    if band is None or not (math.isfinite(band[0]) and math.isfinite(band[1])):
        return where
    return f"{where} ({one_digit(band[0])} to {one_digit(band[1])})"


@dataclass(frozen=True)
class Paper:
    """What a paper shows where we show a result."""

    where: str
    finding: str  # in our words
    applies: Callable[[Any], bool] = lambda r: True  # some results of the type answer another question


class Headline(NamedTuple):
    """How good a model is, in the fewest words: "88.6 %", "accuracy", "87.0 to 90.1"."""

    number: str
    what: str
    interval: str = ""  # 95 %; empty where there is none


def accuracy_headline(what: str, value: float, ends: tuple[float, float] | None = None) -> Headline:
    """A share and its interval in percent; nothing for an interval that is not known."""
    known = ends is not None and all(map(math.isfinite, ends))
    interval = f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}" if ends is not None and known else ""
    return Headline(f"{100 * value:.1f} %", what, interval)


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that figures and pages know about one kind of result."""

    of: type[Result]
    heading: str
    sentence: Callable[[Any], str]  # what the numbers show
    draw: Callable[[Any, Any], None]  # into axes; with several panels, into a figure
    size: Size
    several_panels: bool = False
    paper: Paper | Callable[[Any], Paper | None] | None = None  # a function where it depends on the result
    variant: Callable[[Any], str] = pair  # what tells two results of this kind apart
    payload: Callable[[Any, int], Payload | None] | None = None  # data of the widget within so many bytes
    figure_and_widget: bool | Callable[[Any], bool] = False  # the figure shows more than the widget
    narrow: float | Callable[[Any], float] = 0.0  # height in inches for a phone; 0: as of one panel
    headline: Callable[[Any], Headline] | None = None  # of a measurement that a page opens with

    def narrow_height(self, r: Result) -> float:
        """The height of the figure for a phone, in inches."""
        given = self.narrow(r) if callable(self.narrow) else self.narrow
        return given or min(3.4, max(2.4, self.size[1] * 0.75))

    def draws_beside_widget(self, r: Result) -> bool:
        """Whether a page shows the figure in addition to the widget; a narrow one leaves out what the widget shows."""
        return self.figure_and_widget(r) if callable(self.figure_and_widget) else self.figure_and_widget

    def heading_of(self, r: Result) -> str:
        """The heading of a section about this result."""
        variant = self.variant(r)
        return f"{self.heading}: {variant}" if variant else self.heading

    def sentence_of(self, r: Result) -> str:
        """One sentence, with infinities and NaN as people read them."""
        return legible(self.sentence(r))

    def paper_of(self, r: Result) -> Paper | None:
        """The papers' counterpart, if this result has one."""
        if self.paper is None or isinstance(self.paper, Paper):
            return self.paper if self.paper is not None and self.paper.applies(r) else None
        return self.paper(r)

    def payload_of(self, r: Result, room: int) -> Payload | None:
        """The data of the interactive widget, or None where the figure is all there is."""
        return None if self.payload is None else self.payload(r, room)
