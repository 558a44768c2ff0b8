"""What if a skip, a head, a block or a token were not there: the change in accuracy and in every layer."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.analysis.similarity.grams import SMALLEST, Grams, Watch
from sightline.analysis.similarity.sums import PRINTED, Sums
from sightline.data.datasets import Dataset
from sightline.evals.accuracy import match_classes
from sightline.evals.interval import NO_ENDS, Ends, known_ends, over_groups, wilson
from sightline.observe.groups import ImageGroups
from sightline.observe.images import Batch, Data, ImageSource
from sightline.observe.model import Model, ObservedModel, evaluation_mode, observe
from sightline.observe.selection import Layers, Tokens, check_tokens, select_layers
from sightline.observe.stream import skipping
from sightline.observe.switches import Switch, without
from sightline.spec import About, Result

INSIDE = (
    "block",
    "attention",
    "mixing",
    "mlp",
    "skip",
    "head",
)  # switches that leave the blocks before them as they are


@dataclass(frozen=True, kw_only=True)
class WhatIf(Result):
    """Accuracy and agreement with the whole model for each thing that was switched off, and CKA layer by layer.

    >>> import numpy as np
    >>> r = sl.analysis.WhatIf(title="", caption="", off=("block 0",), whole=0.9, accuracy=np.array([0.5]),
    ...               agreement=np.array([0.6]), similarity=np.ones((1, 2)), layers=("a", "b"))
    >>> r.summary()["block 0: change in accuracy"]
    -0.4
    """

    off: tuple[str, ...]
    whole: float  # accuracy with everything in place; NaN without labels
    accuracy: NDArray[np.float64]  # (off,)
    agreement: NDArray[np.float64]  # (off,), share of images that get the same class as before
    similarity: NDArray[
        np.float64
    ]  # (off, layers), CKA of each layer with itself before; NaN inside a block that is off
    layers: tuple[str, ...]
    # without each group of images: (groups, off + 1) of `accuracy` and, last, `whole`; (groups, off) of the similarity
    # of the last layer
    accuracy_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 1)))
    last_replicates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def change(self) -> NDArray[np.float64]:
        """In accuracy."""
        return self.accuracy - self.whole

    def summary(self) -> dict[str, float]:
        numbers = {}
        for i, name in enumerate(self.off):
            numbers[f"{name}: change in accuracy"] = round(float(self.change[i]), 12)
            numbers[f"{name}: same answer"] = float(self.agreement[i])
            numbers[f"{name}: CKA of the last layer"] = float(self.similarity[i, -1])
        return numbers

    def share_interval(self, share: float) -> Ends:
        """95 % interval of an accuracy or agreement over the images; NaN where their number is not known."""
        n = int(self.how.get("n", 0))
        return wilson(round(share * n), n) if math.isfinite(share) else NO_ENDS

    def intervals(self) -> dict[str, Ends]:
        found: dict[str, Ends] = {}
        right = np.append(self.accuracy, self.whole), self.accuracy_replicates
        last = self.similarity[:, -1], self.last_replicates
        for i, name in enumerate(self.off):
            found[f"{name}: change in accuracy"] = over_groups(lambda x, i=i: float(x[i] - x[-1]), right)
            found[f"{name}: same answer"] = self.share_interval(float(self.agreement[i]))
            found[f"{name}: CKA of the last layer"] = over_groups(lambda x, i=i: float(x[i]), last, most=1.0)
        return known_ends(found)


def what_if(
    model: Model,
    data: Data,
    off: str | Sequence[str],
    *,
    layers: Layers = "blocks",
    tokens: Tokens = "gap",
    n: int | None = None,
    batch: int = 64,
) -> WhatIf:
    """Switch parts off, one at a time: "block 3", "attention 3", "mlp 3", "skip 3" (both of a block), "head 3.1",
    "token 17" (a patch), "prefix 0" (the class token); of a CNN, "block 3" (a residual unit).

    What each does is said at `sl.observe.switch_off`, which switches several off at once. No weight changes. For a
    model trained without a skip, as in the paper's figure 8, build it with `no_skip=(3,)`.

    >>> model = sl.build("vit-nano4", classes=10)
    >>> found = sl.what_if(model, sl.dataset("scenes/shape", num=16, size=32), ["block 2", "head 0.1", "token 5"])
    >>> found.similarity.shape, float(found.similarity[0, 0].round(6))
    ((3, 6), 1.0)
    """
    s = observe(model)
    off = (off,) if isinstance(off, str) else tuple(off)
    switches = [Switch.parse(text, s) for text in off]
    if not switches:
        raise ValueError('Nothing is switched off; give names such as "block 3" or "head 3.1".')
    check_tokens(tokens)
    images = ImageSource(data=data, batch=batch, n=n)
    study = WhatIfSums(s, select_layers(s, layers), tokens, switches=switches, groups=ImageGroups(images.total, 0))
    study.place = class_numbers(s, data)
    with evaluation_mode(s):
        for made in images.batches([s], what="what if"):
            study.add(made)
    return _result(study, off, {"n": study.images, "batch": batch, "tokens": tokens}, images.about(s))


def class_numbers(s: ObservedModel, data: Data) -> torch.Tensor | None:
    """The model's number of each class of a dataset, as `sl.evaluate` matches them; bare labels are numbers already.

    Where the two have different classes, no answer is right or wrong: -1.
    """
    if not isinstance(data, Dataset):
        return None
    names, count = getattr(s.model, "class_names", None), int(getattr(s.model.config, "classes", 0) or 0)
    try:
        return torch.from_numpy(match_classes(names, count, data)[0])
    except ValueError:
        return torch.full((max(len(data.classes), 1),), -1)


class WhatIfSums:
    """Sums over batches for the whole model and for each switch."""

    def __init__(
        self, s: ObservedModel, names: list[str], tokens: Tokens, *, switches: list[Switch], groups: ImageGroups
    ):
        self.target, self.names, self.tokens, self.switches, self.groups = s, names, tokens, switches, groups
        encoder = [p.block or 0 for p in s.block_outputs if p.stage is None]
        self.blocks = encoder if s.encoder_blocks else []  # the number of each block among all parts
        self.sums = [Sums(names, names, groups=groups.count) for _ in switches]
        self.right = np.zeros((groups.count, len(switches) + 1))  # by group of images
        self.members = np.zeros(groups.count)
        self.same = np.zeros(len(switches))
        self.images, self.labeled = 0, True
        self.place: torch.Tensor | None = None  # the model's number of each class of the data

    def answers(self, made: Batch, names: list[str]) -> tuple[torch.Tensor, Grams]:
        """The predicted classes and the Gram matrix of each of these layers, from one pass."""
        said: list[torch.Tensor] = []
        handle = self.target.model.register_forward_hook(lambda m, a, out: said.append(out))
        try:
            grams = Watch(self.target, names, self.tokens)(made.images[0])
        finally:
            handle.remove()
        return said[0].argmax(-1).cpu(), grams

    def whole(self, made: Batch) -> tuple[torch.Tensor, Grams, list[Any]]:
        """The same with everything in place, and the output of every block but the last."""
        outputs: list[Any] = []
        with ExitStack() as stack:
            for block in self.target.encoder_blocks[:-1]:
                stack.callback(block.register_forward_hook(lambda m, a, out: outputs.append(out)).remove)
            return *self.answers(made, self.names), outputs

    def without(self, made: Batch, switch: Switch, before: Grams, outputs: list[Any]) -> tuple[torch.Tensor, Grams]:
        """The same with one part switched off. Blocks before it are what they were, and not computed again."""
        first = switch.number if self.blocks and switch.kind in INSIDE else 0
        start = self.blocks[first] if self.blocks else 0
        earlier = {p.path for p in self.target.parts if p.block is not None and p.block < start}
        later = [name for name in self.names if first == 0 or name not in earlier]
        with without(self.target, switch), skipping(self.target.encoder_blocks[:first], outputs):
            answer, after = self.answers(made, later)
        kept = {name: gram for name, gram in before.whole.items() if name not in later}
        return answer, replace(after, whole=kept | after.whole)

    def add(self, made: Batch) -> None:
        labels = made.labels.cpu() if made.labels is not None and made.labels.ndim == 1 else None
        if labels is not None and self.place is not None:
            labels = self.place[labels] if (self.place >= 0).all() else None
        self.labeled &= labels is not None
        whole, before, outputs = self.whole(made)
        self.images += len(made)
        member = self.groups(made.index)
        np.add.at(self.members, member, 1)
        self._count(-1, member, whole, labels)
        for i, switch in enumerate(self.switches):
            answer, after = self.without(made, switch, before, outputs)
            self.same[i] += (answer == whole).sum().item()
            self._count(i, member, answer, labels)
            if len(made) >= SMALLEST:
                self.sums[i].add(len(made), before, after, groups=torch.from_numpy(member))

    def _count(self, i: int, member: NDArray[np.int64], answer: torch.Tensor, labels: torch.Tensor | None) -> None:
        if labels is not None:
            np.add.at(self.right[:, i], member, (answer == labels).numpy())


def _result(study: WhatIfSums, off: tuple[str, ...], how: dict[str, Any], about: About) -> WhatIf:
    right = study.right.sum(0) / study.images if study.labeled else np.full(len(off) + 1, np.nan)
    alike = [_alike(study, i) for i in range(len(off))]
    less = (study.right.sum(0) - study.right) / np.maximum(study.images - study.members, 1)[:, None]
    last = np.stack([sums.ways[PRINTED].without_groups()[:, -1, -1].numpy() for sums in study.sums], axis=1)
    return WhatIf(
        title=f"What if parts of {study.target.name} were switched off",
        caption=f"Accuracy and CKA with the whole model for {', '.join(off[:4])}: {study.images:,} images.",
        how=how,
        about=about,
        off=off,
        whole=float(right[-1]),
        accuracy=right[:-1],
        agreement=study.same / study.images,
        similarity=np.stack(alike),
        layers=tuple(study.names),
        accuracy_replicates=less if study.labeled else np.zeros((0, len(off) + 1)),
        last_replicates=last,
    )


def _alike(study: WhatIfSums, i: int) -> NDArray[np.float64]:
    """CKA of each layer with itself; a block that is switched off has no layers."""
    sums, switch = study.sums[i], study.switches[i]
    if not sums.images:
        return np.full(len(study.names), np.nan)
    found = sums.cka().diagonal().numpy().copy()
    if switch.kind == "block":
        parts = study.target.part
        number = study.target.block_outputs[switch.number].block
        gone = [name in parts and parts[name].block == number for name in study.names]
        found[gone] = np.nan
    return found
