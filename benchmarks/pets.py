"""DeiT-Tiny measured on photographs and scenes, the tables of docs/measuring.md: `python -m benchmarks.pets`.

Needs the shared data (SIGHTLINE_SHARED, or ../shared beside the checkout); without it nothing is done.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

import sightline as sl
from benchmarks.race import save
from sightline.evals.dense import box_overlap, intersection_over_union

SHARED = Path(os.environ.get("SIGHTLINE_SHARED", Path(__file__).parents[2] / "shared")) / "data"
SPEC = sl.ImageSpec(size=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875)


def photographs(model) -> dict:
    """Few shots, other classifiers, episodes, on Oxford pets."""
    train, test = (sl.extract(model, sl.dataset(SHARED / "pets", split=s), tokens="cls") for s in ("train", "test"))
    few, tuned = (sl.fewshot(train, test, shots=(1, 5, 10, 20), seeds=10, l2=l2) for l2 in (2**10, "sweep"))
    probes = {
        "ridge, tuned": sl.evals.LinearProbe(),
        "logistic": sl.evals.LinearProbe("logistic"),
        "20 neighbors, weighted": sl.evals.KNNProbe(20),
        "10 neighbors": sl.evals.KNNProbe(10, weights="uniform"),
    }
    found = {"l2 = 2**10": few.summary(), "l2 swept": tuned.summary(), "right of 370": round(370 * float(few.mean[-1]))}
    found |= {name: probe.fit(train).score(test) for name, probe in probes.items()}
    for kind in ("prototype", "ridge"):
        found[f"episodes, {kind}"] = sl.evals.episodes(train, (5, 20), (1, 5), queries=10, classifier=kind).summary()
    return found


def individuals(model) -> dict:
    """Retrieval on scenes/identity, whole images and patches; correspondence of patches."""
    data = sl.dataset("scenes/identity", split="test", num=200, size=224)
    e = sl.extract(model, data, tokens="all")
    truth = sl.evals.foreground(data, model.image, e.grids["features"])
    found = {f"whole, {t}": sl.evals.retrieval(e.reduce(t)).summary() for t in ("cls", "gap")}
    exact = np.where(truth.any(1, keepdims=True), truth, True)
    for name, select in {**{s: s for s in ("border", "norm", "pooled", "all")}, "true patches": exact}.items():
        r = sl.evals.retrieval(e, matching="patches", select=select, share=0.15, truth=truth)
        found[f"patches, {name}"] = r.summary()
    some = data.subset(indices=range(0, 200, 2))
    for name, layer in (("middle", 5), ("output", None)):
        found[f"correspondence, {name}"] = sl.evals.patch_correspondence(model, some, layers=layer).summary()
    return found


def dense(model) -> dict:
    """Segmentation and boxes of the subject on scenes/shape."""
    parts = [sl.dataset("scenes/shape", split=s, num=n, size=224) for s, n in (("train", 150), ("test", 60))]
    x, z = (sl.extract(model, d, layers=[5, "features"], tokens="all") for d in parts)
    masks, boxes = ([f(d, model.image) for d in parts] for f in (sl.evals.scene_masks, sl.evals.scene_boxes))
    usual = np.repeat(boxes[0].mean(0, keepdims=True), len(boxes[1]), 0)
    found = {
        "mIoU, all background": float(intersection_over_union(0 * masks[1], masks[1], 2).mean()),
        "IoU, mean box": float(box_overlap(usual, boxes[1]).mean()),
    }
    for layer in x.layers:
        a, b = x.layer(layer), z.layer(layer)
        found[f"mIoU, {layer}"] = sl.evals.SegmentationHead((14, 14)).fit(a, masks[0]).score(b, masks[1])
        found[f"IoU, {layer}"] = sl.evals.BoxProbe().fit(a, boxes[0]).score(b, boxes[1])
    return found


def main() -> None:
    weights = SHARED / "deit_tiny_patch16_224_in1k.npz"
    if not weights.exists():
        print("the shared data is not here: nothing is measured")
        return
    model = sl.load(weights, image=SPEC)
    found = {"pets": photographs(model)}
    model.image = replace(SPEC, crop=1.0)  # scenes are drawn at the right size
    found |= {"scenes/identity": individuals(model), "scenes/shape": dense(model)}
    for title, rows in found.items():
        print(title, *(f"  {k}: {v}" for k, v in rows.items()), sep="\n")
    save("pets", found)


if __name__ == "__main__":
    main()
