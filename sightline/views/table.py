"""The one table of views, in the order of the page."""

from sightline.spec import Result
from sightline.views import attention, depth, saliency, scores, similarity, tokens
from sightline.views.fallback import draw_anything, summary_sentence
from sightline.views.view import View

# what can be explored interactively comes first
VIEWS: tuple[View, ...] = (
    depth.FEATURE_PCA,
    attention.HEAD_ATTENTION,
    tokens.LENS,
    tokens.PATCHING,
    tokens.OUTLIERS,
    attention.SPLIT,
    similarity.LAYERS,
    attention.DISTANCE,
    similarity.HEAD_SUBSETS,
    depth.RECEPTIVE_FIELD,
    depth.RESIDUAL,
    similarity.LOCALIZATION,
    attention.MAPS,
    saliency.ATTRIBUTION,
    saliency.OBJECT_FOCUS,
    saliency.OBJECT_MASS,
    similarity.ABLATION,
    depth.PATCH_FILTERS,
    depth.POSITIONS,
    similarity.BY_BLOCK,
    similarity.POOLING,
    scores.LAYER_PROBES,
    scores.PROBES,
    scores.TRAINING,
    scores.FEW_SHOT,
    scores.EPISODES,
    scores.VTAB,
    scores.ACCURACY,
    scores.TEST_SETS,
    scores.MULTI_LABEL,
    scores.REAL,
    scores.RETRIEVAL,
    depth.NEIGHBORS,
    depth.INDUCTIVE_BIAS,
)


def view_of(result: Result) -> View:
    """How a result is shown. A type that is not in the table goes by its title and shows whatever arrays it has."""
    known = next((v for v in VIEWS if v.of is type(result)), None)
    return known or View(
        of=type(result),
        heading=result.title or type(result).__name__,
        sentence=summary_sentence,
        draw=draw_anything,
        size=(7.0, 4.0),
        several_panels=True,
    )


def position(result: Result) -> int:
    """Where on the page; unknown types come last."""
    return next((i for i, v in enumerate(VIEWS) if v.of is type(result)), len(VIEWS))
