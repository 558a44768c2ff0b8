"""The table of studies. A new one is a file of this room and a line here."""

import difflib

from sightline.studies.definitions.bit import decay, norms, shots
from sightline.studies.definitions.later import imbalance, reid, robustness, unlabeled
from sightline.studies.definitions.raghu import mixer, seeing, skips, tuning
from sightline.studies.definitions.vit import (
    axial,
    compute,
    data,
    encoder,
    locality,
    masked,
    optimizer,
    pooling,
    positions,
    resolution,
)
from sightline.studies.engine.study import Study

# in the order in which a queue runs them
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        data.STUDY,
        positions.STUDY,
        pooling.STUDY,
        norms.STUDY,
        decay.STUDY,
        skips.STUDY,
        resolution.STUDY,
        seeing.STUDY,
        shots.STUDY,
        compute.STUDY,
        tuning.STUDY,
        masked.STUDY,
        locality.STUDY,
        encoder.STUDY,
        optimizer.STUDY,
        imbalance.STUDY,
        reid.STUDY,
        mixer.STUDY,
        axial.STUDY,
        unlabeled.STUDY,
        robustness.STUDY,
    )
}


def list_studies() -> list[Study]:
    """All studies, in the order in which a queue runs them.

    >>> sl.studies.list_studies()[0].name
    'data'
    """
    return list(STUDIES.values())


def get_study(name: str) -> Study:
    """A study by its name.

    >>> sl.studies.get_study("data").seeds
    5
    """
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(f"There is no study {name!r}. {hint}There are {', '.join(STUDIES)}.")
    return STUDIES[name]
