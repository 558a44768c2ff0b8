"""One table of key correspondences per format, read in both directions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from sightline.models.vit import ViTConfig

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorMap:
    """How tensors of a file become one of ours, and back. `to_theirs` inverts `to_ours` bit-exactly."""

    to_ours: Callable[[Sequence[Tensor]], Tensor]
    to_theirs: Callable[[Tensor], Sequence[Tensor]]
    in_order: bool = False  # `to_ours` keeps the memory order of the values: no copy is needed


@dataclass(frozen=True)
class KeyRule:
    """One tensor of ours and the keys of the file that hold it."""

    ours: str
    theirs: tuple[str, ...]
    tensor_map: TensorMap

    def export(self, tensor: Tensor) -> dict[str, Tensor]:
        """Our tensor split and converted to their keys."""
        return dict(zip(self.theirs, self.tensor_map.to_theirs(tensor)))


SAME = TensorMap(lambda t: t[0], lambda t: (t,), in_order=True)
DENSE = TensorMap(lambda t: t[0].mT, lambda t: (t.mT,))  # JAX stores (in, out)
CONV = TensorMap(lambda t: t[0].permute(3, 2, 0, 1), lambda t: (t.permute(2, 3, 1, 0),))  # HWIO
LEADING = TensorMap(lambda t: t[0][0], lambda t: (t[None],), in_order=True)  # (1, n, d): a leading batch axis
ONE_BY_ONE = TensorMap(lambda t: t[0][:, :, 0, 0], lambda t: (t[:, :, None, None],))  # a dense layer as 1x1 convolution
CONV_DENSE = TensorMap(lambda t: t[0][0, 0].mT, lambda t: (t.mT[None, None],))  # the same, in JAX's order


def concatenation(*sizes: int, each: TensorMap = SAME) -> TensorMap:
    """Several tensors of theirs are one of ours, along the first axis (query, key, value; class token, registers)."""

    def concatenate(tensors: Sequence[Tensor]) -> Tensor:
        parts = [each.to_ours([t]) for t in tensors]
        whole = parts[0].new_empty((sum(sizes), *parts[0].shape[1:]))
        for place, part in zip(whole.split(sizes), parts):
            place.copy_(part)  # transposes in blocks, unlike torch.cat
        return whole

    def split(tensor: Tensor) -> Sequence[Tensor]:
        return tuple(each.to_theirs(part)[0] for part in tensor.split(sizes))

    return TensorMap(concatenate, split, in_order=True)


def into_heads(width: int, heads: int) -> TensorMap:
    """A dense kernel (d, h, d/h) whose output is split into heads."""
    return TensorMap(lambda t: t[0].reshape(width, width).mT, lambda t: (t.mT.reshape(width, heads, width // heads),))


def out_of_heads(width: int, heads: int) -> TensorMap:
    """A dense kernel (h, d/h, d) whose input is split into heads."""
    return TensorMap(lambda t: t[0].reshape(width, width).mT, lambda t: (t.mT.reshape(heads, width // heads, width),))


def per_head(width: int, heads: int) -> TensorMap:
    """A bias (h, d/h)."""
    return TensorMap(lambda t: t[0].reshape(width), lambda t: (t.reshape(heads, width // heads),))


def layer_rules(
    ours: str, theirs: str, weight: TensorMap = SAME, *, names: tuple[str, str] = ("weight", "bias")
) -> Iterator[KeyRule]:
    """Weight and bias of one layer."""
    yield KeyRule(f"{ours}.weight", (theirs + names[0],), weight)
    yield KeyRule(f"{ours}.bias", (theirs + names[1],), SAME)


def prefix_rule(tokens: Sequence[tuple[str, int]]) -> Iterator[KeyRule]:
    """The prefix tokens, from pairs of a key and its number of tokens; no rule if there are no tokens."""
    if present := [(key, n) for key, n in tokens if n]:
        each = concatenation(*(n for _, n in present), each=LEADING)
        yield KeyRule("prefix", tuple(key for key, _ in present), each)


@dataclass(frozen=True)
class BlockNames:
    """What a PyTorch library calls the layers of an encoder block; `weight` or `bias` follows each name."""

    norm1: str
    qkv: tuple[str, ...]  # one name, or one each for query, key and value
    out: str
    norm2: str
    fc1: str
    fc2: str
    scales: tuple[str, str] = ("", "")  # LayerScale of attention and MLP, as whole keys


def block_rules(ours: str, theirs: str, names: BlockNames, c: ViTConfig) -> Iterator[KeyRule]:
    """One encoder block; `ours` and `theirs` are the prefixes of its keys."""
    qkv = SAME if len(names.qkv) == 1 else concatenation(c.width, c.width, c.width)
    yield from layer_rules(ours + "norm1", theirs + names.norm1)
    for part in ("weight", "bias") if c.qkv_bias else ("weight",):
        yield KeyRule(f"{ours}attn.qkv.{part}", tuple(theirs + name + part for name in names.qkv), qkv)
    yield from layer_rules(ours + "attn.out", theirs + names.out)
    yield from layer_rules(ours + "norm2", theirs + names.norm2)
    yield from layer_rules(ours + "mlp.fc1", theirs + names.fc1)
    yield from layer_rules(ours + "mlp.fc2", theirs + names.fc2)
    if c.layer_scale is not None:
        for branch, name in zip(("attn", "mlp"), names.scales):
            yield KeyRule(f"{ours}{branch}_scale.gamma", (theirs + name,), SAME)
