"""One table of key correspondences per format, read in both directions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorMap:
    """How tensors of a file become one of ours, and back. `back` undoes `there` bit by bit."""

    there: Callable[[Sequence[Tensor]], Tensor]
    back: Callable[[Tensor], Sequence[Tensor]]
    in_order: bool = False  # `there` leaves the values in the order in which they are kept: no copy is needed


@dataclass(frozen=True)
class KeyRule:
    """One tensor of ours and the keys of the file that hold it."""

    ours: str
    theirs: tuple[str, ...]
    way: TensorMap


SAME = TensorMap(lambda t: t[0], lambda t: (t,), in_order=True)
DENSE = TensorMap(lambda t: t[0].mT, lambda t: (t.mT,))  # JAX keeps (in, out)
CONV = TensorMap(lambda t: t[0].permute(3, 2, 0, 1), lambda t: (t.permute(2, 3, 1, 0),))  # HWIO
LEADING = TensorMap(lambda t: t[0][0], lambda t: (t[None],), in_order=True)  # (1, n, d): a batch axis in front
ONE_BY_ONE = TensorMap(lambda t: t[0][:, :, 0, 0], lambda t: (t[:, :, None, None],))  # a dense layer as 1x1 convolution
CONV_DENSE = TensorMap(lambda t: t[0][0, 0].mT, lambda t: (t.mT[None, None],))  # the same, in JAX's order


def joined(*sizes: int, each: TensorMap = SAME) -> TensorMap:
    """Several tensors of theirs are one of ours, along the first axis (query, key, value; class token, registers)."""

    def join(tensors: Sequence[Tensor]) -> Tensor:
        parts = [each.there([t]) for t in tensors]
        whole = parts[0].new_empty((sum(sizes), *parts[0].shape[1:]))
        for place, part in zip(whole.split(sizes), parts):
            place.copy_(part)  # transposes in blocks, which torch.cat does not
        return whole

    return TensorMap(join, lambda t: tuple(each.back(part)[0] for part in t.split(sizes)), in_order=True)


def into_heads(width: int, heads: int) -> TensorMap:
    """A dense kernel (d, h, d/h) whose output is split into heads."""
    return TensorMap(lambda t: t[0].reshape(width, width).mT, lambda t: (t.mT.reshape(width, heads, width // heads),))


def out_of_heads(width: int, heads: int) -> TensorMap:
    """A dense kernel (h, d/h, d) whose input is split into heads."""
    return TensorMap(lambda t: t[0].reshape(width, width).mT, lambda t: (t.mT.reshape(heads, width // heads, width),))


def per_head(width: int, heads: int) -> TensorMap:
    """A bias (h, d/h)."""
    return TensorMap(lambda t: t[0].reshape(width), lambda t: (t.reshape(heads, width // heads),))


def pairs(
    ours: str, theirs: str, weight: TensorMap = SAME, *, names: tuple[str, str] = ("weight", "bias")
) -> Iterator[KeyRule]:
    """Weight and bias of one layer."""
    yield KeyRule(f"{ours}.weight", (theirs + names[0],), weight)
    yield KeyRule(f"{ours}.bias", (theirs + names[1],), SAME)


def read(row: KeyRule, tensors: Sequence[Tensor]) -> Tensor:
    """Their tensors as ours."""
    return row.way.there(tensors)


def write(row: KeyRule, tensor: Tensor) -> dict[str, Tensor]:
    """Our tensor under their keys."""
    return dict(zip(row.theirs, row.way.back(tensor)))
