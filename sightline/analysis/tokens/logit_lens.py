"""`sl.analysis.logit_lens`: which class the model's own head reads from every token after every block.

After nostalgebraist's logit lens (2020) for language models; for image classifiers, Vilas et al. 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.evals.interval import Ends, known_ends, of_mean, of_median
from sightline.observe.images import Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.readout import Readout, readout
from sightline.observe.stream import Place, residual_stream, watching
from sightline.spec import About, Result
from sightline.weights.names import class_names

MEASURES = ("probability", "rank", "top", "top_probability")


@dataclass(frozen=True, kw_only=True)
class LogitLens(Result):
    """The last norm and the head, applied to every token at every place of the residual stream.

    `targets` are the classes that are followed: what the model says of each image, or what was asked for. Tokens are
    those before the grid (class token, registers), then the patches.

    >>> import numpy as np
    >>> p = np.array([[[0.1, 0.2], [0.6, 0.8]]], np.float32)
    >>> r = sl.analysis.LogitLens(title="", caption="", places=("block 0", "block 1"), targets=np.array([3]),
    ...     probability=p, rank=np.zeros_like(p, np.int32), top=np.full(p.shape, 3, np.int32), top_probability=p,
    ...     answer=p[..., 0], agrees=np.array([[0.0, 1.0]]), images=np.zeros((1, 8, 8, 3), np.uint8), grid=(1, 1),
    ...     prefix=1, classes=10, names={"3": "owl"})
    >>> r.name(3), r.patches("probability").round(1).tolist(), r.decided().tolist()
    ('owl', [0.2, 0.8], [1])
    """

    places: tuple[str, ...]  # of the residual stream, first to last
    targets: NDArray[np.int64]  # (n,)
    probability: NDArray[np.float32]  # (n, places, tokens), of the target
    rank: NDArray[np.int32]  # of the target among all classes; 0: the highest
    top: NDArray[np.int32]  # the class with the highest score
    top_probability: NDArray[np.float32]
    answer: NDArray[np.float32]  # (n, places), probability of the target as the model pools its tokens
    agrees: NDArray[np.float64]  # (n, places), 1 where the target is then the highest
    images: NDArray[np.uint8]  # (n, height, width, 3)
    grid: tuple[int, int]
    prefix: int
    classes: int
    names: dict[str, str]  # of the classes that occur, by number, where the model knows them

    def name(self, number: int) -> str:
        """What to call a class."""
        return self.names.get(str(number), f"class {number}")

    def patches(self, measure: str) -> NDArray[np.float64]:
        """A measure by place, averaged over images and patches."""
        return np.asarray(getattr(self, measure)[..., self.prefix :].mean((0, 2)), dtype=np.float64)

    @property
    def identifiability(self) -> NDArray[np.float64]:
        """(n, places, tokens), 1 - rank / (classes - 1): 1 if the target is the highest, 0.5 by chance."""
        return 1 - self.rank / max(self.classes - 1, 1)

    def decided(self) -> NDArray[np.intp]:
        """The first place from which on the model, read there, gives its target; -1: not even at the end."""
        later = np.logical_and.accumulate(self.agrees[:, ::-1] > 0, axis=1)[:, ::-1]
        return np.where(later.any(1), later.argmax(1), -1)

    def summary(self) -> dict[str, float]:
        hit = (self.rank == 0)[..., self.prefix :].mean((0, 2))
        settled = self.decided()
        return {
            "patches that give the target, first place": float(hit[0]),
            "patches that give the target, last place": float(hit[-1]),
            "probability of the target in a patch, last place": float(self.patches("probability")[-1]),
            "place from which the target is read, median": float(np.median(np.where(settled < 0, np.inf, settled))),
        }

    def intervals(self) -> dict[str, Ends]:
        hit, settled = (self.rank == 0)[..., self.prefix :].mean(2), self.decided()
        likely = self.probability[:, -1, self.prefix :].mean(1)
        return known_ends(
            {
                "patches that give the target, first place": of_mean(hit[:, 0], least=0.0, most=1.0),
                "patches that give the target, last place": of_mean(hit[:, -1], least=0.0, most=1.0),
                "probability of the target in a patch, last place": of_mean(likely, least=0.0, most=1.0),
                "place from which the target is read, median": of_median(np.where(settled < 0, np.inf, settled)),
            }
        )


def logit_lens(
    model: Model,
    data: Data,
    *,
    targets: Sequence[int] | None = None,
    n: int | None = 4,
    batch: int = 4,
    seed: int = 0,
) -> LogitLens:
    """Class scores of each token at each place, for any model whose head reads single tokens or their mean.

    `targets` are the classes to follow, one per image; by default what the model says. Of a CNN the places are the
    units with as many channels and locations as the last one, the only ones that its head can read.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.analysis.logit_lens(model, sl.dataset("scenes/shape", num=3, size=32))
    >>> found.probability.shape, found.places[:2]
    ((3, 7, 65), ('input', 'block 0'))
    """
    s = observe(model)
    reads = readout(s)
    places = readable(s)
    images = ImageSource(data=data, batch=batch, n=n, seed=seed)
    wanted = None if targets is None else torch.as_tensor(list(targets))
    rows: list[dict[str, Tensor]] = []
    shown: list[NDArray[np.uint8]] = []
    with evaluation_mode(s):
        for made in images.batches([s], what="logit lens"):
            first = sum(len(b) for b in shown)
            part = None if wanted is None else _some(wanted, first, len(made), s)
            rows.append(scores(s, reads, places, images=made.images[0], targets=part))
            shown.append(images.shown(made, s, 160))
    if wanted is not None and len(wanted) != sum(map(len, shown)):
        raise ValueError(f"One target per image is expected, {sum(map(len, shown))} in all; got {len(wanted)}.")
    how: dict[str, Any] = {"n": sum(map(len, shown)), "batch": batch, "seed": seed}
    how["targets"] = "given" if targets is not None else "what the model says"
    return _result(s, places, rows, images=np.concatenate(shown), how=how, about=images.about(s))


def readable(s: ObservedModel) -> list[Place]:
    """The places that look like the last one, which the head reads: as many channels, and the same grid."""
    places: list[Place] = residual_stream(s)
    if s.encoder_blocks:
        return places
    shapes: dict[int, tuple[int, ...]] = {}
    with evaluation_mode(s), watching(places, lambda i, t: shapes.update({i: tuple(t.shape)})):
        s.model(s.blank())
    return [place for i, place in enumerate(places) if shapes.get(i) == shapes[len(places) - 1]]


def _some(wanted: Tensor, first: int, count: int, s: ObservedModel) -> Tensor:
    part = wanted[first : first + count]
    if len(part) < count:
        raise ValueError(f"One target per image is expected; got {len(wanted)} for more images.")
    if part.is_floating_point() or ((part < 0) | (part >= s.classes)).any():
        raise ValueError(f"Targets are classes 0 to {s.classes - 1} of {s.name}; got {part.tolist()}.")
    return part


def scores(
    s: ObservedModel, reads: Readout, places: Sequence[Place], *, images: Tensor, targets: Tensor | None
) -> dict[str, Tensor]:
    """Every measure of one batch, (b, places, tokens) or (b, places); one forward pass, then the head at each place."""
    stream: dict[int, Tensor] = {}
    with watching(places, stream.__setitem__):
        logits = s.model(images)
    follow = logits.argmax(-1) if targets is None else targets.to(logits.device)
    found: dict[str, list[Tensor]] = {}
    for i in range(len(places)):
        tokens = reads.tokens(stream.pop(i))
        # image by image the logits stay in the cache
        each = [measure(reads.scores(x), t[:, None]) for x, t in zip(tokens.split(1), follow.split(1))]
        values = [*map(torch.cat, zip(*each)), *measure(reads.answer(tokens), follow)[:2]]
        for name, value in zip((*MEASURES, "answer", "agrees"), values):
            found.setdefault(name, []).append(value.cpu())
    return {k: torch.stack(v, 1) for k, v in found.items()} | {"targets": follow.cpu()}


def measure(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Probability and rank of the target, the highest class and its probability, along the last dimension."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    own = logits.gather(-1, target.expand(logits.shape[:-1])[..., None])
    best = logits.amax(-1, keepdim=True)
    total = (logits - best).clamp_(min=-80).exp_().sum(-1)  # below, floats are denormal: ten times as slow, and nothing
    # a sum of booleans is nine times as slow as one of floats, which count to 16 million
    work = torch.empty(logits.shape, device=logits.device)
    above = torch.gt(logits, own, out=work).sum(-1)
    return ((own - best)[..., 0].exp() / total), above.long(), highest(logits, best, work), 1 / total


def highest(logits: Tensor, best: Tensor, work: Tensor) -> Tensor:
    """The class with the highest score. Where it is one, its number is a product, three times as fast as argmax."""
    is_best = torch.ge(logits, best, out=work)
    if (is_best.sum(-1) != 1).any():
        return logits.argmax(-1)
    return (is_best @ torch.arange(logits.shape[-1], dtype=work.dtype, device=work.device)).long()


def _result(
    s: ObservedModel,
    places: Sequence[Place],
    rows: list[dict[str, Tensor]],
    *,
    images: NDArray[np.uint8],
    how: dict[str, Any],
    about: About,
) -> LogitLens:
    found = {k: torch.cat([r[k] for r in rows]).numpy() for k in rows[0]}
    names, origin = class_names(s.model, s.classes)
    known = () if origin == "number" else names
    seen = np.union1d(found["top"], found["targets"]).tolist()
    return LogitLens(
        title=f"Logit lens of {s.name}",
        caption=f"The last norm and the head of {s.name} applied to every token at {len(places)} places of the "
        f"residual stream, {len(images)} images. The class that is followed is {how['targets']}.",
        how=how,
        about=about,
        places=tuple(p.name for p in places),
        targets=found["targets"],
        probability=found["probability"].astype(np.float32),
        rank=found["rank"].astype(np.int32),
        top=found["top"].astype(np.int32),
        top_probability=found["top_probability"].astype(np.float32),
        answer=found["answer"].astype(np.float32),
        agrees=(found["agrees"] == 0).astype(np.float64),
        images=images,
        grid=_grid(s, found["probability"].shape[-1]),
        prefix=s.prefix,
        classes=s.classes,
        names={str(i): str(known[i]) for i in seen if i < len(known)},
    )


def _grid(s: ObservedModel, tokens: int) -> tuple[int, int]:
    """Of the places; a CNN's last unit may stand before a last convolution, on the same grid."""
    if tokens - s.prefix != s.grid[0] * s.grid[1]:
        raise ValueError(f"{s.name} has {tokens} tokens at its last blocks, which are not its grid {s.grid}.")
    return s.grid
