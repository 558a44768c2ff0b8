"""The one table of views, in the order of the page."""

from sightline.spec import Result
from sightline.views import attention, depth, embeddings, saliency, scores, similarity, tokens
from sightline.views.fallback import draw_anything, summary_sentence
from sightline.views.measurements.compute import COMPUTE
from sightline.views.measurements.corruption import CORRUPTION
from sightline.views.measurements.test_sets import TEST_SETS
from sightline.views.view import View

# what can be explored on images, how good the models are (the page's head has the numbers), then the rest of the
# papers' questions
VIEWS: tuple[View, ...] = (
    depth.FEATURE_PCA,
    attention.HEAD_ATTENTION,
    tokens.LENS,
    attention.MAPS,
    saliency.ATTRIBUTION,
    tokens.PATCHING,
    scores.ACCURACY,
    TEST_SETS,
    CORRUPTION,
    scores.MULTI_LABEL,
    scores.REAL,
    scores.VTAB,
    saliency.SEGMENTATION,
    saliency.DETECTION,
    tokens.OUTLIERS,
    embeddings.SPLIT,
    attention.DISTANCE,
    similarity.LAYERS,
    similarity.HEAD_SUBSETS,
    depth.RECEPTIVE_FIELD,
    depth.RESIDUAL,
    similarity.LOCALIZATION,
    saliency.OBJECT_FOCUS,
    saliency.OBJECT_MASS,
    similarity.ABLATION,
    similarity.POOLING,
    similarity.BY_BLOCK,
    scores.LAYER_PROBES,
    scores.PROBES,
    scores.FEW_SHOT,
    scores.EPISODES,
    scores.RETRIEVAL,
    embeddings.PATCH_FILTERS,
    embeddings.POSITIONS,
    embeddings.NEIGHBORS,
    embeddings.INDUCTIVE_BIAS,
    COMPUTE,
    scores.TRAINING,
)


FIRST = VIEWS.index(tokens.OUTLIERS)  # of the views that do not lead the page


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
