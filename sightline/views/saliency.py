"""Views of saliency and of masks: attribution maps, how much of a map lies on the object, segmentation, detection."""

import math
from typing import Any

from sightline.analysis.saliency.attribution import Attribution
from sightline.analysis.saliency.faithfulness import ObjectMass
from sightline.analysis.saliency.object_focus import ObjectFocus
from sightline.dense.coco_metric import MEASURES
from sightline.dense.evaluation import Detection, Segmentation
from sightline.evals.interval import half_width
from sightline.views.attention import draw_on_images
from sightline.views.payload import maps_on_images
from sightline.views.style import COLORS, PALE, finite
from sightline.views.view import VIT, Headline, Paper, Payload, View, captions, pair, percent, with_interval

ON_THE_OBJECT = "How much of a map lies on the object"
CLASSES = 30  # whose bars fit; of more, the worst
PAPER = Paper(f"{VIT}, figure 6", "Attention lies on the object.")


def draw_attribution(r: Attribution, figure: Any) -> None:
    """The maps, and whether blurring by their order costs more than blurring in random order."""
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    draw_on_images(r.images, r.maps, above)
    ax = below.subplots()
    names = ("deletion", "insertion", "deletion, random order", "insertion, random order")
    values = (r.deletion, r.insertion, r.deletion_random, r.insertion_random)
    for i, value in enumerate(values):
        ax.barh(i, value.mean(), xerr=finite(half_width(value)), color=(COLORS[0], COLORS[1], PALE, PALE)[i])
    ax.set_yticks(range(4), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("mean probability of the class (low deletion and high insertion are good)", loc="right")


def attribution_sentence(r: Attribution) -> str:
    numbers, ends = r.summary(), r.intervals()
    names = "insertion minus deletion", "insertion minus deletion, random order", "agreement with scrambled weights"
    gain, chance, same = (with_interval(numbers[name], ends.get(name)) for name in names)
    more = (r.insertion - r.deletion) - (r.insertion_random - r.deletion_random)
    half, mean = float(half_width(more)), float(more.mean())
    count = f"{len(more)} image{'s' * (len(more) > 1)}"
    verdict = f"{count} cannot tell this from chance"
    if names[0] in ends and math.isfinite(half) and abs(mean) > half:  # one image many times says nothing of others
        verdict = f"the maps are {'better' if mean > 0 else 'worse'} than chance"
    return (
        f"Insertion minus deletion is {gain}, against {chance} for a random order: {verdict}. "
        f"Maps of the same network with random weights have a rank correlation of {same} with these."
    )


def attribution_payload(r: Attribution, room: int) -> Payload | None:
    return maps_on_images(r.maps, r.images, captions(r, len(r.maps)))


METHODS = {"grad_cam": "Grad-CAM", "rollout": "attention rollout", "gradient_rollout": "gradient rollout"}


def attribution_variant(r: Attribution) -> str:
    """The method of the maps."""
    return METHODS.get(str(r.how.get("method")), str(r.how.get("method") or "")) or pair(r)


ATTRIBUTION = View(
    of=Attribution,
    heading="Which regions a prediction rests on",
    sentence=attribution_sentence,
    draw=draw_attribution,
    size=(8.6, 5.2),
    several_panels=True,
    variant=attribution_variant,
    payload=attribution_payload,
)


def draw_object_mass(r: ObjectMass, ax: Any) -> None:
    """Mass on the object against its area, one dot per image; above the line it gets more than its share."""
    ax.plot((0, 1), (0, 1), color=PALE, linestyle="--", label="as much as its area")
    ax.scatter(r.area, r.mass, s=16, color=COLORS[0])
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="object's share of the area", ylabel="share of the map on the object")
    ax.legend(loc="lower right")


def object_mass_sentence(r: ObjectMass) -> str:
    numbers, ends = r.summary(), r.intervals()
    names = "mass on the object", "area of the object", "images where mass exceeds area"
    mass, area, more = (with_interval(numbers[name], ends.get(name), percent) for name in names)
    return (
        f"{mass} of the maps lies on the object, which covers {area} "
        f"of the area; it is more than its share in {more} of {len(r.mass)} images."
    )


OBJECT_MASS = View(
    of=ObjectMass,
    heading=ON_THE_OBJECT,
    sentence=object_mass_sentence,
    draw=draw_object_mass,
    size=(4.6, 4.2),
    paper=PAPER,
)


def draw_focus(r: ObjectFocus, ax: Any) -> None:
    """Mass on the object minus its area for each kind of map, mean and 95 % interval over images."""
    gains = [r.gain(method) for method in r.methods]
    at = range(len(gains))
    ax.barh(at, [g[0] for g in gains], xerr=finite([g[1] for g in gains]), color=COLORS[0], capsize=3)
    ax.axvline(0, color=PALE, linestyle="--")
    ax.set_yticks(at, list(r.methods))
    ax.invert_yaxis()
    ax.set_xlabel("share of the map on the object, minus the object's share of the area")


def object_focus_sentence(r: ObjectFocus) -> str:
    gains = [(method, *r.gain(method)) for method in r.methods]
    listed = ", ".join(f"{m} {100 * g:+.1f} ± {100 * h:.1f} points" for m, g, h in gains)
    area = with_interval(float(r.area.mean()), r.intervals().get("area of the object"), percent, inside=True)
    return f"Share of the map on the object, beyond the object's share of the area ({area}): {listed}."


OBJECT_FOCUS = View(
    of=ObjectFocus,
    heading=ON_THE_OBJECT,
    sentence=object_focus_sentence,
    draw=draw_focus,
    size=(6.4, 2.6),
    paper=PAPER,
)


def draw_per_class(r: Segmentation | Detection, ax: Any) -> None:
    """The score of each class that occurs, the best first."""
    known = [(v, c) for v, c in zip(r.per_class.tolist(), r.classes) if math.isfinite(v)]
    shown = sorted(known, reverse=True)[-CLASSES:]
    ax.barh(range(len(shown)), [v for v, _ in shown], color=COLORS[0])
    ax.set_yticks(range(len(shown)), [c[:24] for _, c in shown])
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("intersection over union" if isinstance(r, Segmentation) else "average precision of masks")


def segmentation_sentence(r: Segmentation) -> str:
    low, high = r.interval
    return f"Mean intersection over union {r.miou:.3f}, 95 % interval {low:.3f} to {high:.3f} over {r.images:,} images."


def detection_sentence(r: Detection) -> str:
    ends = r.intervals()

    def one(value: float, name: str) -> str:
        return with_interval(value, ends.get(name), lambda x: f"{x:.3f}", inside=True)

    named = zip(MEASURES[1:], r.masks[1:].tolist())
    listed = "; ".join(f"{name} {one(value, name)}" for name, value in named if math.isfinite(value))
    low, high = ends["AP"]
    return (
        f"AP of masks {r.masks[0]:.3f}, 95 % interval {low:.3f} to {high:.3f} over {r.images:,} images ({listed}); "
        f"of boxes {one(float(r.boxes[0]), 'box AP')}."
    )


SEGMENTATION = View(
    of=Segmentation,
    heading="Segmentation",
    sentence=segmentation_sentence,
    draw=draw_per_class,
    size=(5.6, 3.8),
    headline=lambda r: Headline(f"{r.miou:.3f}", "mean IoU", f"{r.interval[0]:.3f} to {r.interval[1]:.3f}"),
)
DETECTION = View(
    of=Detection,
    heading="Detection",
    sentence=detection_sentence,
    draw=draw_per_class,
    size=(5.6, 3.8),
    headline=lambda r: Headline(
        f"{r.masks[0]:.3f}", "AP of masks", f"{r.mask_interval[0][0]:.3f} to {r.mask_interval[0][1]:.3f}"
    ),
)
