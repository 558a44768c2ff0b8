"""The claims of the study seeing, judged for given networks: the interval is over images, not over training seeds."""

import re
from collections.abc import Sequence
from pathlib import Path

from sightline.data.source import dataset, held_out_split
from sightline.observe.source import model_names, open_model
from sightline.studies.claims import verdicts
from sightline.studies.definitions.raghu.seeing import STUDY
from sightline.studies.engine.analyses import ONE_GRID, analyze
from sightline.studies.verdict import Verdict


def judge_networks(models: Sequence[str], data: str, *, out: str | Path = "studies", n: int = 256) -> list[Verdict]:
    """What given networks say of the claims of the study seeing, on up to `n` images of a dataset or folder.

    The first is compared with each other one: name a ViT first, then CNNs, hybrids or ViTs with other pooling. The
    analyses are kept in `networks_folder`, so the same call resumes.

    >>> sl.studies.judge_networks(["vit-nano4"], "scenes/shape")
    Traceback (most recent call last):
        ...
    ValueError: The claims compare networks: name at least two, a ViT first; got vit-nano4.
    """
    if len(models) < 2:
        raise ValueError(f"The claims compare networks: name at least two, a ViT first; got {', '.join(models)}.")
    names = model_names(list(models))
    images = dataset(data, split=held_out_split(data))
    networks = [open_model(source, classes=10) for source in models]
    place = networks_folder(out, names)
    found = verdicts(analyze(place, networks, names, images, n=n))
    grid = verdicts(analyze(place / "one grid", networks, names, images, n=n, only=ONE_GRID))
    judged = {d.claim for d in STUDY.decides} - {"C15"}  # which takes both models on one grid
    return [v for v in found if v.claim in judged] + [v for v in grid if v.claim == "C15"]


def networks_folder(out: str | Path, names: Sequence[str]) -> Path:
    """Where the analyses of given networks are kept.

    >>> sl.studies.networks_folder("judged", ["vit-b16", "runs/bit"]).as_posix()
    'judged/networks/vit-b16-runs-bit'
    """
    return Path(out) / "networks" / re.sub(r"[^\w.-]+", "-", "+".join(names))
