"""What the recipes for speed promise is what was measured: in their docstrings, in the guide and in README."""

import json
from pathlib import Path
from statistics import mean

import pytest

import sightline as sl
from benchmarks.records import FAMILIES

ROOT = Path(__file__).parents[2]
RECORDS = json.loads((ROOT / "benchmarks/results/records.json").read_text())["runs"]
SEEDS = {1: "one seed", 2: "two seeds", 3: "three seeds", 4: "four seeds", 5: "five seeds"}


def plain(text: str) -> str:
    return " ".join(text.replace("*", "").split())


def measured(family: str) -> list[dict]:
    """The records with the recipe as it is now: its model, and its number of epochs."""
    model, epochs = FAMILIES[family].model, FAMILIES[family].recipe().epochs
    return [r for r in RECORDS if (r["family"], r["model"], r["epochs"]) == (family, model, epochs)]


def spread(values: list[float]) -> str:
    return f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""


@pytest.mark.parametrize("family", ["bit", "hybrid"])
def test_a_recipe_promises_what_its_records_say(family):
    promise, runs = plain(FAMILIES[family].recipe.__doc__ or ""), measured(family)
    assert FAMILIES[family].model in promise
    if not runs:
        assert "Not yet measured" in promise
        return
    right = [100 * r["test"]["plain"] for r in runs]
    minutes = [r["core_minutes"] for r in runs]
    mirrored = [100 * r["test"]["mirror"] for r in runs]
    assert f"python -m benchmarks.records {family}" in promise
    assert f"{SEEDS[len(runs)]}" in promise
    assert f"{mean(right):.1f} %{spread(right)} of the test images after {runs[0]['epochs']:g} epochs" in promise
    assert f"{mean(minutes):.1f} minutes{spread(minutes)} of one core" in promise
    assert f'{mean(mirrored):.1f} %{spread(mirrored)} with `evaluate(..., tta="mirror")`' in promise
    assert all(r["commit"].removesuffix("-dirty") in promise for r in runs)


def test_the_vit_s_promise_is_that_of_the_file_that_ships():
    facts, promise = sl.weights.shipped()["vit-nano4.cifar10-gap"].facts, plain(sl.recipes.speed_vit.__doc__ or "")
    accuracy, _, images = facts["accuracy"].partition(" of ")
    assert "speed_vit" in facts["command"]
    assert "epochs=30" in facts["command"]
    assert sl.recipes.speed_vit().epochs == 30
    assert f"{accuracy} of the test images, {facts['seeds']}" in promise
    assert images.startswith("10,000")


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_pages_promise_no_more(page):
    text = plain((ROOT / page).read_text())
    for family, name in (("bit", "BiT"), ("hybrid", "hybrid")):
        runs = measured(family)
        if not runs:
            continue
        right, minutes = (mean(r["test"]["plain"] for r in runs), mean(r["core_minutes"] for r in runs))
        if page == "README.md":
            assert f"{name} {100 * right:.1f} % in {minutes:.0f} minutes ({SEEDS[len(runs)]}" in text
        else:
            assert f"{100 * right:.1f} % on CIFAR-10 in {minutes:.0f} core-minutes, {SEEDS[len(runs)]}" in text
