"""What the ViT paper says of its table 2, checked against the numbers of the table."""

from dataclasses import dataclass

from sightline.references.compute import days_on
from sightline.references.rows import Reference, find

COST = "TPUv3-core-days"


@dataclass(frozen=True, kw_only=True)
class TableClaim:
    """A sentence about published numbers, and whether they bear it out.

    >>> sl.references.table_2_claims()[0].exceptions
    {'imagenet-real': (0.9054, 0.9054), 'vtab': (0.7628, 0.7629)}
    """

    claim: str
    holds: bool
    numbers: dict[str, tuple[float, ...]]  # what was compared, by task; the claimed better one first
    exceptions: dict[str, tuple[float, ...]]  # where it is not so

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, with its exceptions."""
        if not self.exceptions:
            return f"{self.claim}: {'holds' if self.holds else 'does not hold'}."
        where = ", ".join(f"{name} ({' against '.join(map(str, v))})" for name, v in self.exceptions.items())
        return (
            f"{self.claim}: does not hold for {where}; it holds for {len(self.numbers) - len(self.exceptions)} others."
        )


def table_2_claims() -> tuple[TableClaim, ...]:
    """Four sentences of the ViT paper (section 4.2) about its table 2; the first has two exceptions.

    >>> [c.holds for c in sl.references.table_2_claims()]
    [False, True, True, True]
    """
    large, bit, huge = _row("vit-l16"), _row("bit-r152x4"), _row("vit-h14")
    tasks = [name for name in large if name != COST]
    others = [find("vit-2", dataset=name) for name in ("imagenet", "cifar100", "vtab")]
    days = days_on(8, _row("vit-l16", "imagenet-21k")[COST])
    return (
        _better("ViT-L/16 (JFT) beats BiT-L on all tasks", {n: (large[n], bit[n]) for n in tasks}),
        TableClaim(
            claim="It needs less compute than BiT-L",
            holds=large[COST] < bit[COST],
            numbers={COST: (large[COST], bit[COST])},
            exceptions={},
        ),
        _better("ViT-H/14 is best on ImageNet, CIFAR-100 and VTAB", {r[0].dataset: _first(huge, r) for r in others}),
        TableClaim(
            claim="ViT-L/16 (ImageNet-21k) takes about 30 days on eight TPUv3 cores",
            holds=round(days, -1) == 30,
            numbers={"days": (days,)},
            exceptions={},
        ),
    )


def _row(model: str, pretraining: str = "jft-300m") -> dict[str, float]:
    return {r.dataset or r.metric: r.value for r in find("vit-2", model=model, pretraining=pretraining)}


def _first(model: dict[str, float], rows: tuple[Reference, ...]) -> tuple[float, float]:
    """The number of a model, and the best of all others."""
    return model[rows[0].dataset], max(r.value for r in rows if r.model != "vit-h14")


def _better(claim: str, numbers: dict[str, tuple[float, ...]]) -> TableClaim:
    exceptions = {name: pair for name, pair in numbers.items() if not pair[0] > pair[1]}
    return TableClaim(claim=claim, holds=not exceptions, numbers=numbers, exceptions=exceptions)
