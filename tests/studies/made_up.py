"""A folder of results made up for every study, for the page: `python -m tests.studies.made_up FOLDER`."""

import sys
from pathlib import Path

import numpy as np

import sightline as sl
from sightline.studies.engine.analyses import packed
from sightline.studies.engine.specs import VERSION
from sightline.studies.engine.store import write
from tests.studies.worlds import WORLDS, noisy

SEEDS = 3


def write_all(folder: Path, names: tuple[str, ...] = (*WORLDS, "seeing")) -> None:
    """Results in which the claims are true."""
    for name in names:
        study = sl.studies.get_study(name)
        rows = []
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            for label, cell in study.plan((0,))[0] if name != "seeing" else [("figures", (("models", "full data"),))]:
                made = figures(rng) if name == "seeing" else WORLDS[name][0](label, dict(cell), 1)
                numbers = made if name == "seeing" else noisy(made, rng)
                rows.append({"name": label, "cell": dict(cell), "seed": seed, "numbers": numbers})
        head = {"study": name, "version": VERSION, "smoke": False, "seeds": list(range(SEEDS)), "complete": False}
        write(folder / f"{name}.json", {**head, "trainings": 1, "images": 1, "macs": 10**12, "rows": rows})
        write(folder / f"{name}.spent.json", {"core_hours": 1.5, "tasks": 1, "failed": []})


def figures(rng: np.random.Generator) -> dict:
    """The curves of the study seeing."""
    layers = np.arange(24)
    near = np.exp(-np.abs(layers[:, None] - layers) / 9.0)
    heads = np.sort(rng.random((6, 4)))
    ratios = (2 + rng.random(12)).tolist()
    field = {"maps": packed(rng.random((3, 144))), "radii": np.linspace(4, 11, 12).tolist(), "own": ratios, "size": 24}
    places = {"maps": packed(0.1 + 0.6 * np.eye(36)), "grid": [6, 6]}
    return {
        "cka": {"ViT": packed(near), "BiT": packed(near**3), "ViT, BiT": packed(near[:, :16])},
        "distance": {"ViT": packed(heads), "hybrid": packed(heads)},
        "filters": {"ViT": packed(rng.random((28, 48)))},
        "subsets": {"ViT, BiT": {"cka": packed(rng.random((4, 9))), "distance": [1.0, 2.0, 3.0, 4.0]}},
        "fields": {"ViT": field, "BiT": field},
        "residual": {
            "ViT": {"patches": ratios, "class token": ratios[::-1], "sublayers": ["attention", "mlp"] * 6},
            "BiT": {"patches": ratios[:8], "class token": [], "sublayers": ["convolution"] * 8},
        },
        "places": {"ViT": places, "BiT": {"maps": packed(np.full((9, 36), 0.2)), "grid": [3, 3]}},
    }


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
