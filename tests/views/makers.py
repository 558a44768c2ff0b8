"""One small result of every type, with distinct numbers."""

import numpy as np

import sightline as sl
from sightline.spec import About, ModelId

VIT = ModelId(name="small ViT", kind="vit", pool="cls")
CNN = ModelId(name="small CNN", kind="cnn", pool="map")


def about(*models, images="", analysis=""):
    return About(models=models, images=images, analysis=analysis)


def random(*shape, seed=0):
    return np.random.default_rng(seed).random(shape)


def without_groups(whole, error, *, groups=20, seed=0):
    """Values without each group of images, such that the jackknife's standard error of every number is `error`."""
    noise = np.random.default_rng(seed).standard_normal((groups, *np.shape(whole)))
    noise -= noise.mean(0)
    scale = np.sqrt((groups - 1) / groups * np.square(noise).sum(0))
    return whole + error * noise / scale


def make_images(n=3, side=16):
    return (random(n, side, side, 3) * 255).astype(np.uint8)


def cka(rows=6, columns=6, *, models=(VIT,), **how):
    s = 1 - np.abs(np.linspace(0, 1, rows)[:, None] - np.linspace(0, 1, columns)[None]) * 0.6
    names = tuple(f"layer.{i}" for i in range(rows)), tuple(f"layer.{i}" for i in range(columns))
    return sl.analysis.CKA(
        title="CKA within a model",
        caption="Synthetic.",
        how={"n": 32, "repeats": 4, **how},
        about=about(*models),
        similarity=s,
        band=np.full_like(s, 0.01),
        knn=s * 0.5,
        rows=names[0],
        columns=names[1] if rows == columns else tuple(f"unit.{i}" for i in range(columns)),
        replicates=without_groups(s, 0.005)[None],
    )


def distance(low=(10.0, 60.0, 110.0), high=(100.0, 105.0, 110.0), *, model=VIT, error=1.0):
    pixels = np.linspace(np.array(low), np.array(high), 6)
    return sl.analysis.AttentionDistance(
        title="Attention distance",
        caption="Synthetic.",
        how={"n": 16},
        about=about(model),
        pixels=pixels,
        raw=pixels * 0.9,
        error=np.full_like(pixels, error),
        prefix_mass=pixels / 500,
        entropy=pixels / 50,
        uniform=116.5,
        image_size=(224, 224),
        grid=(14, 14),
        prefix=1,
        replicates=without_groups(pixels, error, seed=len(model.name)),
    )


def receptive(radius=10.0, *, side="after", model=VIT, own=0.4, error=0.01, layers=4, jump=0.0, largest=0.9):
    maps = random(layers, 32, 32)
    radii = np.stack([np.full(layers, radius), np.full(layers, radius * 1.5) + jump * (np.arange(layers) >= 2)], 1)
    owns = np.full(layers, own)
    shares = np.full(layers, largest)
    seed = len(side) + 10 * len(model.name)  # what two results have in common would cancel
    return sl.analysis.ReceptiveField(
        title="Receptive fields",
        caption="Synthetic.",
        how={"n": 8},
        side=side,
        about=about(model),
        maps=maps / maps.sum((1, 2), keepdims=True),
        names=tuple(f"blocks.{i}" for i in range(layers)),
        centers=np.full((layers, 2), 16.0),
        radii=radii,
        own=owns,
        radii_error=np.full((layers, 2), error),
        own_error=np.full(layers, error),
        replicates=without_groups(np.concatenate([radii, owns[:, None]], 1), error, seed=seed),
        largest=shares if side == "after" else np.zeros(0),
        largest_replicates=without_groups(shares, 0.05) if side == "after" else np.zeros((0, 0)),
    )


def residual(lower=1.0, upper=-1.0, *, model=VIT, ratio=2.0):
    names = tuple(f"blocks.{i // 2}.{('attn', 'mlp')[i % 2]}_sum" for i in range(12))
    shift = np.where(np.arange(12) < 6, lower, upper) + 0.1 * np.sin(np.arange(12))
    per = np.full(12, ratio) + 0.01 * np.arange(12)
    own = np.stack([per * np.exp(shift), np.zeros(12), 0.9 + 0.05 * np.sign(shift)])
    own[0, 1::2] *= 0.8  # the MLP adds more
    cosine = np.full(12, 0.9)
    return sl.analysis.ResidualRatios(
        title="Skips",
        caption="Synthetic.",
        how={"n": 8},
        about=about(model),
        names=names,
        sublayers=("attention", "mlp") * 6,
        blocks=tuple(i // 2 for i in range(12)),
        ratio=per,
        cosine_branch=np.zeros(12),
        cosine_sum=cosine,
        class_token=own,
        per_token=np.repeat(np.stack([per, per, per])[:, :, None], 5, axis=2),
        replicates=without_groups(np.stack([per, own[0], cosine, own[2]]), 0.005),
    )


def localization(share=1.0, *, model=VIT, side=6, n=2000):
    count = side * side
    flat = np.full((count, count), 0.1)
    hit = np.arange(count) % 10 < round(10 * share)
    flat[np.arange(count)[hit], np.arange(count)[hit]] = 0.8
    flat[np.arange(count)[~hit], (np.arange(count)[~hit] + 1) % count] = 0.7
    maps = flat.reshape(count, side, side)
    stages = np.array([0.1, 0.3]) if model.kind == "cnn" else np.zeros(0)
    return sl.analysis.Localization(
        title="Places",
        caption="Synthetic.",
        how={"n": n},
        about=about(model),
        maps=maps,
        class_token=np.zeros((1, side, side)),
        layer="blocks.5.mlp_sum",
        grid=(side, side),
        replicates=without_groups(maps, 0.02),
        hits=np.array([[n / 2, share / 2], [n, share]]),
        stages=tuple(f"stages.{i}" for i in range(len(stages))),
        earlier=stages,
        earlier_replicates=without_groups(stages, 0.01),
    )


def fewshot(first=0.4, last=0.8, *, spread=0.01, seeds=5):
    noise = spread * np.linspace(-1, 1, seeds)
    return sl.evals.FewShot(
        title="Few-shot accuracy",
        caption="Synthetic.",
        how={"model": "small ViT"},
        shots=(1, 5, 10),
        seeds=tuple(range(seeds)),
        classes=("a", "b", "c", "d"),
        accuracy=np.stack([first + noise, (first + last) / 2 + noise, last - noise]),
        per_class=np.full((3, 4), 0.5),
        l2=np.ones((3, seeds)),
    )


def episodes(few=0.9, many=0.6, one=0.6, five=0.9):
    base = np.array([[few + one - 0.75, few + five - 0.75], [many + one - 0.75, many + five - 0.75]])
    noise = 0.02 * np.sin(np.arange(40))
    return sl.evals.Episodes(
        title="Episodes",
        caption="Synthetic.",
        ways=(2, 5),
        shots=(1, 5),
        accuracy=np.minimum(base[:, :, None] + noise, 1.0),
        within=0.8,
        between=0.2,
    )


def layer_probes(*, cls_end=0.8, gap_end=0.8, cnn_end=0.3, patches_end=0.5, half=0.01):
    up = np.linspace(0.2, 1, 6)
    patches = np.where(np.arange(6) < 4, up * cls_end, patches_end)
    first = np.array([0.1, 0.1, 0.1, 0.2, 0.5, 1]) * gap_end
    rows = np.stack([up * cls_end, patches, patches, first, up * gap_end, up * cnn_end])
    return sl.analysis.LayerProbes(
        title="What each block knows",
        caption="Synthetic.",
        how={"seeds": 3},
        curves=(
            "CLS; class token",
            "CLS; mean of patches",
            "CLS; mean of all",
            "GAP; first token",
            "GAP; mean of patches",
            "CNN; mean of the map",
        ),
        accuracy=rows,
        half_width=np.full_like(rows, half),
        replicates=without_groups(rows, half / 2),
    )


def heads(first=0.7, last=0.2, *, count=8):
    similarity = np.linspace(first, last, count)[:, None] + np.array([0.0, 0.05])
    return sl.analysis.HeadSubsets(
        title="Heads",
        caption="Synthetic.",
        how={"n": 16},
        about=about(VIT, CNN),
        similarity=similarity,
        distance=np.linspace(20.0, 100.0, count),
        subsets=tuple((i,) for i in range(count)),
        columns=("stages.0", "stages.1"),
        block=0,
        replicates=without_groups(similarity, 0.01),
        heads=similarity,
        head_distance=np.linspace(20.0, 100.0, count),
        head_replicates=without_groups(similarity, 0.01, seed=1),
        places=tuple((i % 2, i) for i in range(count)),
    )


def filters(explained=0.7, low=0.8):
    return sl.analysis.PatchFilters(
        title="Filters",
        caption="Synthetic.",
        about=about(VIT),
        components=random(8, 4, 4, 3) - 0.5,
        explained=np.full(8, explained / 8),
        low_frequency=np.full(8, low),
        low_frequency_of_noise=0.2,
        noise=np.stack([0.5 + 0.01 * np.sin(np.arange(20)), 0.2 + 0.01 * np.cos(np.arange(20))], 1),
    )


def positions(decay=-0.8, row_column=0.2):
    far = np.hypot(*np.meshgrid(np.arange(4), np.arange(4)))
    return sl.analysis.PositionSimilarity(
        title="Positions",
        caption="Synthetic.",
        about=about(VIT),
        tiles=np.stack([np.roll(1 - far / 4, (i // 4, i % 4), (0, 1)) for i in range(16)]),
        by_distance=np.array([[1.0, 0.8], [2.0, 0.3]]),
        decay=decay,
        row_column=row_column,
        sinusoid=0.6,
        sinusoid_of_noise=0.1,
        isotropic=0.02 + 0.01 * np.sin(np.arange(20)),
    )


def mass(mass_=0.5, area=0.2):
    return sl.analysis.ObjectMass(
        title="Mass",
        caption="Synthetic.",
        about=about(VIT),
        mass=mass_ + 0.05 * np.sin(np.arange(20)),
        area=np.full(20, area),
    )


def maps(*, heads=0):
    shape = (3, heads, 4, 4) if heads else (3, 4, 4)
    return sl.analysis.AttentionMaps(
        title="Maps", caption="Synthetic.", how={"kind": "test"} if not heads else {"block": 2, "query": "patch 1"},
        maps=random(*shape).astype(np.float32), image_size=(16, 16), images=make_images(),
    )  # fmt: skip


def attribution():
    one = random(3)
    return sl.analysis.Attribution(
        title="Attribution", caption="Synthetic.", maps=random(3, 4, 4).astype(np.float32), classes=np.arange(3),
        deletion=one * 0.2, insertion=0.5 + one * 0.2, deletion_random=one, insertion_random=one,
        agreement_random_weights=one - 0.5, image_size=(16, 16), images=make_images(),
    )  # fmt: skip


def head_attention():
    rows = random(2, 3, 2, 17, 16)
    return sl.analysis.HeadAttention(
        title="HeadAttention", caption="Synthetic.", about=about(VIT), images=make_images(2),
        attention=np.round(rows / rows.max(-1, keepdims=True) * 255).astype(np.uint8),
        peaks=(rows.max(-1) / rows.sum(-1)).astype(np.float32), grid=(4, 4), prefix=1,
    )  # fmt: skip


def feature_pca(model=VIT):
    return sl.analysis.FeaturePCA(
        title="Features", caption="Synthetic.", about=about(model), images=make_images(2),
        features=(random(2, 3, 16, 5) * 200 - 100).astype(np.int8), layers=("blocks.0", "blocks.1", "blocks.2"),
        grids=((4, 4), (4, 4), (2, 2)), explained=np.array([0.9, 0.8, 0.7]),
    )  # fmt: skip


def what_if():
    return sl.analysis.WhatIf(
        title="What if", caption="Synthetic.", off=("block 0", "block 1"), whole=0.9, accuracy=np.array([0.2, 0.8]),
        agreement=np.array([0.3, 0.9]), similarity=np.array([[np.nan, 0.4, 0.3], [1.0, np.nan, 0.8]]),
        layers=("a", "b", "c"),
    )  # fmt: skip


def scale(*, varied="", low=0.9, top=0.4, parameters=1000, model=VIT, **how):
    by_block = np.linspace(low, top, 6)[None]
    return sl.analysis.BlockSimilarity(
        title="By block", caption="Synthetic.", how=how, varied=varied, models=("10 %",), about=about(model, VIT),
        similarity=by_block, band=np.full((1, 6), 0.01), depth=np.linspace(0, 1, 6)[None],
        replicates=without_groups(by_block, 0.01, seed=parameters), parameters=(parameters,), training_images=(500,),
    )  # fmt: skip


def probes(offset=0.0, *, model=VIT, seeds=3):
    tokens = 0.3 + offset + 0.02 * random(2, 17)
    return sl.evals.ProbeAccuracy(
        title="Probes", caption="Synthetic.", about=about(model), layers=("a", "b"), seeds=tuple(range(seeds)),
        accuracy=np.tile(tokens.mean(1, keepdims=True), (1, seeds)), per_token=tokens,
        replicates=without_groups(tokens.mean(1), 0.01),
        grids={"a": (4, 4), "b": (4, 4)}, prefix={"a": 1, "b": 1},
    )  # fmt: skip


def classification(classes=("cat", "dog", "owl")):
    k = len(classes)
    logits = np.eye(k)[np.arange(4 * k) % k] * 3 + random(4 * k, k)
    return sl.evals.score(logits, (np.arange(4 * k) + (np.arange(4 * k) == 0)) % k, classes=classes)


def curves(end=0.5):
    values = np.stack([np.linspace(2, end, 6), np.where(np.arange(6) % 2, 0.4, np.nan), np.linspace(1e-3, 0, 6)], 1)
    names = ("train/loss", "val/top1", "train/lr")
    return sl.training.Curves(title="Training", caption="", step=np.arange(6) * 10, names=names, values=values)


def focus(gain=0.3):
    mass = np.stack([0.2 + gain + 0.05 * np.sin(np.arange(20)), np.full(20, 0.2)])
    return sl.analysis.ObjectFocus(
        title="Focus", caption="", about=about(VIT), methods=("rollout", "cam"), mass=mass, area=np.full(20, 0.2)
    )


def pooling(last=0.3):
    return sl.analysis.PoolingComparison(
        title="Pooling", caption="", own=np.array([0.9, last]), own_cka=np.array([0.5, 0.1]),
        by_block=np.array([0.9, 0.8, last]), curves=("CLS; class token", "GAP; first token"),
        accuracy=np.array([[0.1, 0.5, 0.8], [0.1, 0.2, 0.8]]), per_token=np.array([[0.1], [0.5]]), layers=("blocks.2",),
    )  # fmt: skip


def biases():
    return sl.analysis.InductiveBias(
        title="Biases", caption="Synthetic.", locality_first=0.9, locality_last=0.2, equivariance=0.1,
        equivariance_off_grid=0.4, invariance=0.3, permutation=1.0, permutation_pooled=0.7,
    )  # fmt: skip


def outlier_tokens(*, register=""):
    groups = ("class token", "outlier patches", "other patches", *(["register"] if register else []))
    mass = random(3, len(groups))
    norm = (1 + random(2, 4, 16)).astype(np.float32)
    norm[:, 2:, 5] = 20
    return sl.analysis.OutlierTokens(
        title="Outliers", caption="Synthetic.", about=about(VIT), places=("input", "block 0", "block 1", "block 2"),
        typical=np.full(4, 1.5), largest=np.array([2, 2, 20, 20.0]), prefix_norm=np.ones((4, 1)),
        share=np.array([0, 0, 1, 1]) / 16, channels=random(4, 2, 8), groups=groups,
        mass=mass / mass.sum(1, keepdims=True), sinks=np.array([0, 0, 1.0]), norm=norm, outlier=norm > 10,
        received=random(2, 3, 16).astype(np.float32), images=make_images(2), grid=(4, 4), register=register,
    )  # fmt: skip


def logit_lens(n=3):
    p = random(n, 4, 17).astype(np.float32)
    return sl.analysis.LogitLens(
        title="Lens", caption="Synthetic.", about=about(VIT), places=("input", "block 0", "block 1", "block 2"),
        targets=np.arange(n), probability=p, rank=(p * 5).astype(np.int32), top=(p * 6).astype(np.int32),
        top_probability=p, answer=p[..., 0], agrees=np.tile([0.0, 0, 1, 1], (n, 1)), images=make_images(n),
        grid=(4, 4), prefix=1, classes=6, names={"0": "owl", "1": "<b>cat</b>"},
    )  # fmt: skip


def patching(*, heads=2):
    return sl.analysis.ActivationPatching(
        title="Patching", caption="Synthetic.", about=about(VIT if heads else CNN),
        places=("input", "block 0", "block 1"), regions=random(1, 3, 4, 4) - 0.2,
        prefix=random(1, 3, 1 if heads else 0), branches=random(1, 2, 2 if heads else 1),
        kinds=("attention", "mlp") if heads else ("convolution",), heads=random(1, 2, heads),
        controls=np.array([[[0.0] * 3, [1.0] * 3]]), difference=np.array([[3.0, -2.0]]), classes=np.array([[1, 0]]),
        names={"1": "owl"}, images=make_images(2)[None], passes=40,
    )  # fmt: skip


def position_content():
    energy = random(3, 4, 2)
    rows = random(3, 4, 2, 16, 16)
    return sl.analysis.PositionContent(
        title="Split", caption="Synthetic.", about=about(VIT), energy=energy, total=energy.sum(0),
        maps=np.round(rows / rows.max(-1, keepdims=True) * 255).astype(np.uint8),
        peaks=(rows.max(-1) / rows.sum(-1)).astype(np.float32), image=make_images(1)[0], grid=(4, 4),
    )  # fmt: skip


def every() -> dict[str, sl.Result]:
    """One of each type that the package knows."""
    retrieval = sl.evals.Retrieval(
        title="Retrieval", caption="", matching="whole", cmc=np.array([0.5, 0.7, 1.0]), precision=np.array([0.5, 1.0])
    )
    sets = sl.evals.TestSets(
        title="Sets", caption="", names=("val", "v2"), top1=np.array([0.8, 0.7]), top5=np.array([0.9, 0.8]),
        low=np.array([0.75, 0.64]), high=np.array([0.85, 0.76]), counts=np.array([100, 100]),
    )  # fmt: skip
    level = np.array([0.4, 0.5, 0.45])
    compute = sl.training.AccuracyByCompute(
        title="Compute", caption="", runs=("a", "b", "c"), families=("ViT", "BiT", "hybrid"),
        macs=np.array([1e12, 2e12, 4e12]), accuracy=level, low=level - 0.02, high=level + 0.02,
    )  # fmt: skip
    right = np.random.default_rng(0).random((3, 2, 50)) < 0.6
    corruption = sl.evals.CorruptionAccuracy(
        title="Corruption", caption="", kinds=("fog", "jpeg", "gaussian-noise"), severities=(1, 5), right=right,
        clean=right[0, 0], classes=10,
    )  # fmt: skip
    near = sl.analysis.NeighborSimilarity(
        title="Near", caption="", by_distance=np.array([[1, 0.6], [2, 0.3]]), across=0.1
    )
    parts = sl.dense.Segmentation(
        title="Segmentation", caption="", miou=0.6, interval=(0.5, 0.7), classes=("background", "cat", "dog"),
        per_class=np.array([0.9, 0.3, np.nan]), images=20,
    )  # fmt: skip
    objects = sl.dense.Detection(
        title="Detection", caption="", masks=np.array([0.5, 0.7, 0.5, 0.4, 0.6, np.nan]), boxes=np.full(6, 0.5),
        mask_interval=np.tile([0.4, 0.6], (3, 1)), box_interval=np.tile([0.4, 0.6], (3, 1)), classes=("cat", "dog"),
        per_class=np.array([0.6, 0.4]), images=20,
    )  # fmt: skip
    some = [
        cka(), cka(4, 5, models=(VIT, CNN)), distance(), receptive(), receptive(side="before"), residual(),
        localization(), fewshot(), episodes(), layer_probes(), heads(), filters(), positions(), mass(), maps(),
        maps(heads=4), attribution(), head_attention(), feature_pca(), what_if(), scale(), probes(), classification(),
        biases(), near, compute, corruption, outlier_tokens(),
        outlier_tokens(register="register 1.7"), logit_lens(), patching(),
        patching(heads=0), position_content(),
        curves(), focus(), pooling(),
        retrieval, sets, sl.evals.vtab_references()[0],
        sl.evals.score_labels(random(5, 3), random(5, 3, seed=1) > 0.4), sl.evals.score_real([3, 1], [[3], [2]]),
        parts, objects,
    ]  # fmt: skip
    return {f"{i:02}-{type(r).__name__}": r for i, r in enumerate(some)}
