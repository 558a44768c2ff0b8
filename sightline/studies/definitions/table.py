"""The table of studies. A new one is a file of this room and a line here."""

import difflib

from sightline.studies.definitions import (
    compute,
    data,
    decay,
    masked,
    norms,
    pooling,
    positions,
    resolution,
    seeing,
    shots,
    skips,
    tuning,
)
from sightline.studies.engine.study import Study

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        data,
        positions,
        pooling,
        norms,
        decay,
        skips,
        resolution,
        seeing,
        shots,
        compute,
        tuning,
        masked,
    )
}


def list_studies() -> list[Study]:
    """All studies, in the order in which a queue would run them.

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
