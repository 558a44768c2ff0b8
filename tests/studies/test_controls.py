"""Every claim has positive controls that hold, opposites that do not, and null models that must never hold."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.analysis.embeddings import first_kernel
from sightline.analysis.similarity.localization import own_minus_other
from sightline.spec import ModelId
from sightline.studies.claims import CLAIMS, judge
from sightline.studies.evidence import gather
from tests.views import makers
from tests.views.makers import CNN, VIT, without_groups

GAP = ModelId(name="GAP ViT", kind="vit", pool="gap")
HYBRID = ModelId(name="hybrid", kind="hybrid", pool="cls")
LARGE = ModelId(name="large ViT", kind="vit", pool="cls")
RANDOM = np.random.default_rng(0)


class Control(NamedTuple):
    """What a claim must say of constructed results."""

    holds: dict  # name: results
    fails: dict  # the opposite, or a part of the claim that is wrong: refuted
    nulls: dict  # there is nothing: refuted or undecided, never confirmed


def heat(s, *models, stages=(), error=0.01, seed=0):
    """A heat map with its error."""
    s = np.array(s)
    r = makers.cka(*s.shape, models=models)
    left = without_groups(s, error, seed=seed)[None]
    return replace(r, similarity=s, row_stages=stages, column_stages=stages, replicates=left)


def banded(low, *, layers=8):
    """Layers are the less similar the farther apart they are, down to `low`."""
    at = np.arange(layers) / (layers - 1)
    return 1 - (1 - low) * np.abs(at[:, None] - at)


STAGES = (0, 0, 1, 1, 2, 2, 3, 3)


def staged(level):
    of = np.array(STAGES)
    s = np.where(of[:, None] == of, 0.4 + level, 0.4)
    np.fill_diagonal(s, 1)
    return s


def cross(path, *, rows=24, best=0.9, rest=0.1, top=None):
    """ViT rows, CNN columns: each column has one best row; `top` is the best similarity of the top third."""
    s = np.full((rows, len(path)), rest)
    near = np.abs(np.arange(rows)[:, None] - np.asarray(path)[None]) / rows
    s += (best - rest) * np.exp(-((near / 0.05) ** 2))
    if top is not None:
        s[-(rows // 3) :] = np.minimum(s[-(rows // 3) :], top)
    return s


def match(path, **more):
    return [heat(cross(path, **more), VIT, CNN, error=0.02)]


PAPER = np.concatenate([np.linspace(0, 6, 8), np.linspace(6, 13, 8)]).round()  # quarter, then a third, of 24 layers


def heads(r, **changes):
    """Subsets and single heads alike."""
    similarity = changes["similarity"]
    return replace(
        r,
        similarity=similarity,
        replicates=without_groups(similarity, 0.01),
        heads=similarity,
        head_replicates=without_groups(similarity, 0.01, seed=1),
    )


def fields(vit, vit_before, cnn, cnn_before):
    return [
        makers.receptive(own=vit),
        makers.receptive(own=vit_before, side="before"),
        makers.receptive(own=cnn, model=CNN),
        makers.receptive(own=cnn_before, model=CNN, side="before"),
    ]


def curve(shift, *, mlp=0.8, cosine=None, model=VIT):
    """A residual study whose class token differs from the patches by `shift`, addition by addition."""
    shift = np.asarray(shift, dtype=float)
    r = makers.residual(model=model)
    token = r.ratio * np.exp(shift)
    token[1::2] *= mlp
    cosines = 0.9 + 0.05 * np.sign(shift if cosine is None else np.asarray(cosine))
    own = np.stack([token, np.zeros(12), cosines])
    left = without_groups(np.stack([r.ratio, token, r.cosine_sum, cosines]), 0.005)
    return [replace(r, class_token=own, replicates=left)]


CROSSED = np.repeat([1.0, -1.0], 6)


def places(maps, model=VIT, *, earlier=(0.1, 0.3), n=2000):
    r = makers.localization(model=model, n=n)
    known = np.array(earlier) if model.kind == "cnn" else np.zeros(0)
    side = maps.shape[1]
    return replace(
        r,
        maps=maps,
        grid=(side, side),
        replicates=without_groups(maps, 0.02, seed=len(model.name)),
        earlier=known,
        earlier_replicates=without_groups(known, 0.01),
    )


def own(level, side=6):
    """Tokens that know their own patch, by so much more than the others."""
    return (0.1 + level * np.eye(side * side)).reshape(-1, side, side)


def centered(side=6):
    """Every token knows the same: the whole image, and of it the middle best."""
    y = np.abs(np.arange(side) - (side - 1) / 2)
    one = 0.5 - 0.05 * np.hypot(y[:, None], y)
    return np.tile(one, (side * side, 1, 1))


def probed(**changes):
    """Curves by name, put in the place of the maker's."""
    r = makers.layer_probes()
    rows = r.accuracy.copy()
    for name, row in changes.items():
        rows[("cls", "patches", "all", "first", "gap", "cnn").index(name)] = row
    return [replace(r, accuracy=rows, replicates=without_groups(rows, 0.005))]


UP, CHANCE = np.linspace(0.2, 1, 6) * 0.8, np.full(6, 0.1)


def by_data(small, large):
    """CKA with the full model of the lowest and of the top block, for a small and a large model."""
    return [
        makers.scale(varied="data", low=small[0], top=small[1]),
        makers.scale(varied="data", low=large[0], top=large[1], parameters=9000, model=LARGE),
    ]


def tokens(level, model):
    r = makers.probes(model=model)
    accuracy = np.full_like(r.accuracy, level)
    return replace(r, accuracy=accuracy, replicates=without_groups(accuracy.mean(1), 0.01, seed=len(model.name)))


def noisy(count, spread=0.01):
    return spread * np.sin(np.arange(count))


CONTROLS = {
    "V7": Control(
        {"rows and columns": [makers.positions(row_column=0.2)]},
        {"far patches alike": [makers.positions(decay=0.1)], "diagonals": [makers.positions(row_column=-0.2)]},
        {"isotropic": [makers.positions(row_column=0.025)]},
    ),
    "V8": Control(
        {"mixed, then global": [makers.distance()]},
        {"all far": [makers.distance((90, 95, 100))], "falling": [makers.distance((10, 60, 110), (10, 12, 14))]},
        {"identity": [makers.distance((1, 1, 1), (1, 1, 1), error=0.1)], "uniform": [makers.distance((116,) * 3)]},
    ),
    "V9": Control(
        {"hybrid farther": [makers.distance((5, 60, 110)), makers.distance((60, 70, 110), model=HYBRID)]},
        {"ViT farther": [makers.distance((60, 70, 110)), makers.distance((5, 60, 110), model=HYBRID)]},
        {"alike": [makers.distance((50, 60, 110)), makers.distance((50, 60, 110), model=HYBRID)]},
    ),
    "V10": Control(
        {"smooth": [makers.filters()]},
        {"rough": [makers.filters(low=0.1)], "many": [makers.filters(explained=0.3)]},
        {"random": [makers.filters(explained=0.505, low=0.203)]},
    ),
    "V14": Control(
        {"on the object": [makers.mass(), makers.focus()]},
        {"beside it": [makers.mass(mass_=0.1), makers.focus(-0.1)]},
        {"everywhere": [makers.mass(mass_=0.2), makers.focus(0.0)]},
    ),
    "B4": Control(
        {"better": [makers.fewshot()]},
        {"worse": [makers.fewshot(first=0.8, last=0.4)]},
        {"same": [makers.fewshot(first=0.5, last=0.5)]},
    ),
    "B6": Control(
        {"as stated": [makers.episodes()]},
        {"more ways help": [makers.episodes(few=0.6, many=0.9)], "shots hurt": [makers.episodes(one=0.9, five=0.6)]},
        {"ways and shots make no difference": [makers.episodes(few=0.7, many=0.7, one=0.7, five=0.7)]},
    ),
    "C1": Control(
        {"even ViT": [heat(banded(0.8), VIT), heat(banded(0.1), CNN, seed=1)]},
        {"even CNN": [heat(banded(0.1), VIT), heat(banded(0.8), CNN, seed=1)]},
        {"alike": [heat(banded(0.5), VIT), heat(banded(0.5), CNN, seed=1)]},
    ),
    "C2": Control(
        {"stages": [heat(banded(0.6), VIT), heat(staged(0.5), CNN, stages=STAGES, seed=1)]},
        {"ViT with stages": [heat(staged(0.5), VIT), heat(np.maximum(banded(0.6), 0.9), CNN, stages=STAGES, seed=1)]},
        {"alike": [heat(banded(0.5), VIT), heat(banded(0.5), CNN, stages=STAGES, seed=1)]},
    ),
    "C3": Control(
        {"figure 2": match(PAPER)},
        {"layer by layer": match(np.linspace(0, 23, 16).round())},
        {
            "every layer matches layer 0": match(np.zeros(16)),
            "every layer matches the last": match(np.full(16, 23)),
            "nothing matches": [heat(0.1 + 0.001 * RANDOM.random((24, 16)), VIT, CNN, error=0.02)],
        },
    ),
    "C4": Control(
        {"top like nothing": match(np.linspace(0, 23, 16).round(), top=0.2)},
        {"top like everything": match(np.linspace(16, 23, 16).round())},
        {"all alike": [heat(np.full((24, 16), 0.5), VIT, CNN)]},
    ),
    "C5": Control(
        {"figure 3": [makers.distance()]},
        {"all far": [makers.distance((90, 95, 100))], "top local": [makers.distance((10, 60, 110), (10, 60, 110))]},
        {"identity": [makers.distance((1, 1, 1), (1, 1, 1), error=0.1)], "uniform": [makers.distance((116,) * 3)]},
    ),
    "C7": Control(
        {"local alike": [makers.heads()]},
        {"global alike": [makers.heads(0.2, 0.7)]},
        {
            "no relation": [heads(makers.heads(), similarity=np.array([[3, 1, 4, 2, 5, 2, 4, 3]] * 2).T / 10.0)],
            "three heads": [makers.heads(count=3)],
        },
    ),
    "C8": Control(
        {"larger, and a jump": [makers.receptive(12.0, jump=8.0), makers.receptive(5.0, jump=2.0, model=CNN)]},
        {
            "smaller": [makers.receptive(5.0, jump=8.0), makers.receptive(12.0, model=CNN)],
            "larger, gradual": [makers.receptive(12.0, jump=1.0), makers.receptive(5.0, jump=4.0, model=CNN)],
            "attention zeroed": [makers.receptive(2.0), makers.receptive(5.0, jump=2.0, model=CNN)],
        },
        {"alike": [makers.receptive(8.0, jump=3.0), makers.receptive(8.0, jump=3.0, model=CNN)]},
    ),
    "C9": Control(
        {"figures C.1 to C.4": fields(0.6, 0.1, 0.3, 0.3)},
        {
            "own patch before": fields(0.1, 0.6, 0.3, 0.3),
            "a ResNet too": fields(0.6, 0.1, 0.6, 0.1),
            "others larger": [makers.receptive(largest=0.2), makers.receptive(own=0.1, side="before")],
        },
        {"no ResNet": fields(0.6, 0.1, 0.3, 0.3)[:2], "no difference": fields(0.3, 0.3, 0.3, 0.3)},
    ),
    "C10": Control(
        {"figure 7": curve(CROSSED)},
        {"reverse": curve(-CROSSED), "always more": curve(np.ones(12), mlp=1), "back and forth": curve([1, -1] * 6)},
        {"none": curve(noisy(12, 1e-4), mlp=1)},
    ),
    "C11": Control(
        {"ViT more": [makers.residual(ratio=4.0), makers.residual(ratio=1.0, model=CNN)]},
        {"CNN more": [makers.residual(ratio=1.0), makers.residual(ratio=4.0, model=CNN)]},
        {"alike": [makers.residual(), makers.residual(model=CNN)]},
    ),
    "C12": Control(
        {"the MLP": curve(CROSSED)},
        {"attention": curve(CROSSED, mlp=1.5), "cosines reversed": curve(CROSSED, cosine=-CROSSED)},
        {"half and half": curve(CROSSED, mlp=1.0)},
    ),
    "C14": Control(
        {"own patch": [places(own(0.6))]},
        {"any but the own": [places(own(-0.1))]},
        {"the same everywhere": [places(centered())], "nothing": [places(own(0.0))]},
    ),
    "C15": Control(
        {"ViT better": [places(own(0.6)), places(own(0.05), CNN)]},
        {
            "CNN better": [places(own(0.1)), places(own(0.6), CNN)],
            "earlier above the ViT": [places(own(0.6)), places(own(0.05), CNN, earlier=(0.9, 0.3))],
            "earlier below the last": [places(own(0.6)), places(own(0.2), CNN, earlier=(0.0, 0.01))],
        },
        {
            "alike": [places(own(0.3)), places(own(0.3), CNN)],
            "another grid": [places(own(0.6)), places(own(0.1, side=4), CNN)],
            "fewer images": [places(own(0.6)), places(own(0.1), CNN, n=200)],
        },
    ),
    "C16": Control(
        {"GAP worse": [places(own(0.6)), places(own(0.1), GAP)]},
        {"GAP better": [places(own(0.1)), places(own(0.6), GAP)]},
        {"alike": [places(own(0.3)), places(own(0.3), GAP)]},
    ),
    "C17": Control(
        {"GAP better": [tokens(0.3, VIT), tokens(0.6, GAP)]},
        {"CLS better": [tokens(0.6, VIT), tokens(0.3, GAP)]},
        {"alike": [tokens(0.5, VIT), tokens(0.5, GAP)]},
    ),
    "C18": Control(
        {"figure 11b": probed()},
        {
            "CLS ahead at the end": probed(gap=UP * 0.8),
            "first token good early": probed(first=UP * 1.05),
            "first token poor at the end": probed(first=np.full(6, 0.1)),
            "tokens behind from the start": probed(all=UP * 0.5),
            "tokens ahead at the end": probed(all=np.append(UP[:5], 0.95), patches=np.append(UP[:5], 0.95)),
            "worse without the class token": probed(patches=np.append(UP[:4], [0.3, 0.3])),
        },
        {"nobody knows": probed(**{k: np.full(6, 0.1) for k in ("cls", "patches", "all", "first", "gap")})},
    ),
    "C19": Control(
        {"apart at the end": probed()},
        {"apart in the middle": probed(patches=UP * 0.5), "never apart": probed(patches=UP, all=UP)},
        {"nothing learned": probed(cls=CHANCE, patches=CHANCE, all=CHANCE, first=CHANCE, gap=CHANCE)},
    ),
    "C20": Control(
        {"figure 12": by_data((0.95, 0.7), (0.95, 0.4))},
        {
            "larger changes less": by_data((0.95, 0.4), (0.95, 0.7)),
            "low blocks change": by_data((0.4, 0.9), (0.4, 0.8)),
        },
        {"another seed": by_data((0.9, 0.9), (0.9, 0.9)), "one size": by_data((0.95, 0.7), (0.95, 0.4))[:1]},
    ),
    "C22": Control(
        {"ViT ahead": probed()},
        {"CNN ahead": probed(cnn=UP * 1.4)},
        {"alike": probed(cnn=UP, patches=UP)},
    ),
}  # fmt: skip


BY_NUMBER = {c.number: c for c in CLAIMS}


def of(number, results):
    """The states of one claim."""
    return {v.state for v in judge(BY_NUMBER[number], gather(results))}


def cases(kind):
    return [
        pytest.param(number, results, id=f"{number}: {name}")
        for number, control in CONTROLS.items()
        for name, results in getattr(control, kind).items()
    ]


def test_every_claim_has_controls():
    assert {c.number for c in CLAIMS} == set(CONTROLS)
    assert not [number for number, control in CONTROLS.items() if not all(control)]


@pytest.mark.parametrize(("number", "results"), cases("holds"))
def test_positive_controls_hold(number, results):
    assert of(number, results) == {"holds"}


@pytest.mark.parametrize(("number", "results"), cases("fails"))
def test_opposites_do_not(number, results):
    assert of(number, results) == {"does not hold"}


@pytest.mark.parametrize(("number", "results"), cases("nulls"))
def test_nulls_never_hold(number, results):
    states = of(number, results)
    assert states
    assert "holds" not in states


@pytest.fixture(scope="module")
def everything():
    return list(makers.every().values())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.number)
def test_a_claim_names_what_it_reads(claim, everything):
    """All results that decide it are of types that it names, and the page puts it beside them."""
    deciding = next(iter(CONTROLS[claim.number].holds.values()))
    assert all(isinstance(r, claim.reads) for r in deciding)
    assert all(claim.about(r) for r in deciding)
    assert of(claim.number, [r for r in everything if not isinstance(r, claim.reads)]) == set()


FROM_IMAGES = [n for n in CONTROLS if n not in ("V7", "V10", "V14", "B4", "B6")]


def one_image(r):
    """The same result with no groups of images to leave out, as one image or an older version gives it."""
    names = [n for n in vars(r) if n.endswith("replicates")]
    return replace(r, **{n: getattr(r, n)[:, :0] if type(r).__name__ == "CKA" else getattr(r, n)[:0] for n in names})


@pytest.mark.parametrize("number", FROM_IMAGES)
def test_one_image_decides_nothing(number):
    for results in (r for control in CONTROLS[number][:2] for r in control.values()):
        assert of(number, [one_image(r) for r in results]) == {"undecided"}


@pytest.mark.parametrize("number", FROM_IMAGES)
def test_too_much_noise_decides_nothing(number):
    """The same results with errors a few thousand times as large."""
    results = next(iter(CONTROLS[number].holds.values()))
    assert "holds" not in of(number, [blurred(r) for r in results])


def blurred(r):
    changes = {}
    for name in [n for n in vars(r) if n.endswith("replicates")]:
        left = getattr(r, name)
        if not left.size:
            continue
        middle = left.mean(1 if type(r).__name__ == "CKA" else 0, keepdims=True)
        changes[name] = middle + 3000 * (left - middle)
    return replace(r, **changes)


# the same with small networks, whose answers are known by their construction


@pytest.fixture(scope="module")
def scenes():
    return sl.dataset("scenes/objects", num=24, size=32)


@pytest.fixture(scope="module")
def zeroed():
    """A ViT whose attention adds nothing: every token sees its own patch alone."""
    model = sl.build("vit-nano4", classes=0, depth=3)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.out.weight)
        torch.nn.init.zeros_(block.attn.out.bias)
    return model


def test_without_attention_fields_do_not_jump_and_tokens_know_their_place(zeroed, scenes):
    cnn = sl.build("bit-nano", classes=0)
    fields = [sl.receptive_field(model, scenes, n=8, probes=1) for model in (zeroed, cnn)]
    assert of("C8", fields) == {"does not hold"}
    assert of("C14", [sl.localization(zeroed, scenes)]) == {"holds"}


def test_tokens_that_are_all_the_same_know_no_place(scenes):
    """The last block of this network replaces every token by one that all share."""
    model = sl.build("vit-nano4", classes=0, depth=1)
    model.blocks[0].register_forward_hook(lambda module, args, out: out.mean(1, keepdim=True).expand_as(out))
    found = sl.localization(model, scenes, layer="blocks.0")
    assert "holds" not in of("C14", [found])
    assert abs(own_minus_other(found.maps)) < 0.02


@pytest.mark.parametrize(("position", "holds"), [("1d", False), ("sincos", True)])
def test_positions_before_training_and_by_rule(position, holds):
    """Random embeddings have no rows and columns; sines and cosines of row and column do."""
    model = sl.build("vit-nano4", classes=0, depth=1, position=position)
    assert ("holds" in of("V7", [sl.position_similarity(model)])) == holds


def test_filters_before_training_are_no_basis():
    model = sl.build("vit-nano4", classes=0, depth=1, patch=8)
    assert "holds" not in of("V10", [sl.patch_filters(model)])
    waves = torch.cos(torch.linspace(0, 3.1, 8)[:, None] * torch.arange(3) + torch.zeros(8, 3))
    smooth = torch.einsum("yi,xj->ijyx", waves, waves).flatten(0, 1)[:, None].expand(-1, 3, -1, -1)
    kernel = first_kernel(model)
    mix = torch.randn(len(kernel), len(smooth), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        kernel.copy_(torch.einsum("ds,scyx->dcyx", mix, smooth) + 0.01 * torch.randn_like(kernel))
    assert of("V10", [sl.patch_filters(model)]) == {"holds"}


def test_one_photograph_decides_nothing(zeroed, scenes):
    one = scenes.subset(indices=[0])
    results = [
        sl.attention_distance(zeroed, one),
        sl.residual_ratios(zeroed, one),
        sl.receptive_field(zeroed, one, n=1),
    ]
    assert {v.state for v in sl.verdicts(results)} == {"undecided"}


def test_a_head_that_says_nothing_is_no_most_similar_one():
    """A head without values has no CKA. It was ranked above all others, and a local one made the claim hold."""
    r = heads(makers.heads(), similarity=np.array([[3, 1, 4, 2, 5, 2, 4, 3]] * 2).T / 10.0)
    names = ("similarity", "heads"), ("replicates", "head_replicates")
    dead = {name: getattr(r, name).copy() for both in names for name in both}
    for name in names[0]:
        dead[name][0] = np.nan
    for name in names[1]:
        dead[name][:, 0] = np.nan
    (found,) = judge(BY_NUMBER["C7"], gather([replace(r, **dead)]))
    alive = {name: v[:, 1:] if name in names[1] else v[1:] for name, v in {n: getattr(r, n) for n in dead}.items()}
    less = {n: getattr(r, n)[1:] for n in ("distance", "head_distance", "subsets", "places")}
    (want,) = judge(BY_NUMBER["C7"], gather([replace(r, **alive, **less)]))
    assert [e.value for e in found.effects] == [e.value for e in want.effects]
    assert "1 heads say the same" in found.note


def test_a_silent_head_of_a_network():
    model = sl.build("vit-nano4", classes=5, depth=2, patch=8)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[128:144] = 0  # the values of its first head
        model.blocks[0].attn.qkv.bias[128:144] = 0
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = sl.analysis.head_subsets(model, sl.build("bit-nano", classes=0), images, size=1)
    assert np.isnan(found.heads[0]).all()
    kept = np.isfinite(found.similarity).all(1)
    want = replace(found, similarity=found.similarity[kept], distance=found.distance[kept]).ranks()
    np.testing.assert_allclose(found.ranks(), want)


def test_units_without_a_skip_are_not_taken_for_others():
    """In a MobileNet some units add nothing: before the addition there are fewer fields than after it."""
    vit = fields(0.6, 0.1, 0.3, 0.3)[:2]
    after, before = makers.receptive(own=0.3, model=CNN), makers.receptive(own=0.3, model=CNN, side="before")
    other = np.array([0.9, *after.own[1:]])
    after = replace(after, own=other, replicates=without_groups(np.stack([*after.radii.T, other], 1), 0.001))
    some = {name: getattr(before, name)[1:] for name in ("maps", "names", "centers", "radii", "own", "largest")}
    some |= {name: getattr(before, name)[:, 1:] for name in ("replicates", "largest_replicates")}
    before = replace(before, **some, how={**before.how, "sums": list(after.names[1:])})
    assert of("C9", [*vit, after, before]) == {"holds"}
    assert of("C9", [*vit, after, replace(before, how={})]) == {"undecided"}


@pytest.mark.parametrize("number", ["C10", "C12"])
def test_a_class_token_that_no_head_reads_is_not_judged(number):
    """Some models average their patches and keep a class token: nothing was ever asked of it."""
    assert of(number, curve(CROSSED, model=GAP)) == set()
