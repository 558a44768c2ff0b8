"""The demo: it goes on where it was, and does nothing twice."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import sightline as sl
from sightline.cli import main
from sightline.cli.demo import STATEMENT, claim_rows
from sightline.report.demo import look_at_shipped
from sightline.studies.claims import CLAIMS

SOME = ("cka", "attention-distance", "head-attention", "feature-pca", "residual", "localization", "what-if", "probes")


class EnoughError(Exception):
    pass


@pytest.fixture(autouse=True, scope="module")
def _small():
    """Few images in small batches, and some of the analyses: tests/analysis looks at these models with all of them."""
    with pytest.MonkeyPatch.context() as patch:
        images, recipe = sl.studies.Demo.images, sl.studies.Demo.recipe
        patch.setattr(sl.studies.Demo, "images", lambda *a: replace(images(*a), num=96))
        patch.setattr(sl.studies.Demo, "recipe", lambda *a: replace(recipe(*a), batch=16))
        patch.setattr("sightline.studies.demo.look", partial(sl.look, only=SOME))
        patch.setattr("sightline.studies.demo.os.cpu_count", lambda: 1)  # to start a second worker takes longer
        yield


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return sl.studies.Demo(out=tmp_path_factory.mktemp("demo"), minutes=0.04, models=("ViT", "BiT"))


@pytest.fixture(scope="module")
def steps(plan):
    """Stopped after training, then run to its end."""

    def stop(text):
        if text.startswith("BiT"):
            raise EnoughError

    with pytest.raises(EnoughError):
        list(plan.run(stop))
    first = {path: path.stat().st_mtime_ns for path in (plan.path / "runs").rglob("*.safetensors")}
    assert len(first) >= 3
    steps = list(plan.run(lambda text: None))
    assert first.items() <= {path: path.stat().st_mtime_ns for path in first}.items()
    return steps


def test_every_step_leaves_results(steps):
    assert [step.what for step in steps] == [
        "train ViT", "train BiT", "fine-tune ViT at 48 px", "look at ViT", "look at BiT", "compare ViT and BiT",
    ]  # fmt: skip
    results = [sl.Result.load(path) for step in steps for path in step.results]
    counts = [len(step.results) for step in steps]
    assert counts == [3, 3, 1, 8, 5, 5]  # three of the eight need attention or blocks of tokens
    assert all(result.about.models for result in results)
    names = {model.name for result in results for model in result.about.models}
    assert names == {"ViT", "BiT", "ViT at 48 px"}
    rows = [step.row for step in steps if step.row]
    assert [row["model"] for row in rows] == ["ViT", "BiT", "ViT at 48 px"]
    assert rows[2]["MMAC"] > rows[0]["MMAC"]
    claims = {v.claim for v in sl.verdicts(results)}
    assert {"C1", "C5", "C11"} <= claims


def test_a_second_time_nothing_is_done_again(plan, steps):
    before = {path: path.stat().st_mtime_ns for path in plan.path.rglob("*.npz")}
    again = list(plan.run(lambda text: None))
    assert [step.row for step in again] == [step.row for step in steps]
    assert {path: path.stat().st_mtime_ns for path in plan.path.rglob("*.npz")} == before


def test_the_engine_trains_it(plan, steps):
    """One small study: a folder by key for every training, each with what it is and what came out."""
    folders = list((plan.path / "runs").iterdir())
    assert len(folders) == 3
    assert all((folder / "spec.json").exists() and (folder / "result.json").exists() for folder in folders)


@pytest.mark.parametrize(("settings", "said"), [({"minutes": 0}, "above 0"), ({"models": ("ViT", "Swin")}, "Swin")])
def test_bad_input(settings, said):
    with pytest.raises(ValueError, match=said):
        sl.studies.Demo(**settings)


def test_the_command_ends_with_a_page(plan, steps, capsys, monkeypatch):
    """Every result is given to the page, which here draws three of them: tests/report draws every kind."""
    given = {}

    def write(results, folder, title):
        given.update(results)
        return sl.write_report(dict(list(results.items())[:3]), folder, title)

    monkeypatch.setattr("sightline.report.demo.write_report", write)
    main(["demo", "--minutes", str(plan.minutes), "--out", str(plan.out), "--models", "ViT,BiT", "--json"])
    out = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in out["models"]] == ["ViT", "BiT", "ViT at 48 px"]
    assert {v["verdict"] for v in out["verdicts"]} <= {"holds", "does not hold", "undecided"}
    assert len(given) == sum(len(step.results) for step in steps)
    text = Path(out["page"]).read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "trained from scratch on scenes/count in minutes" in text


def test_what_is_looked_at_first_is_in_nobodys_way(tmp_path, monkeypatch):
    """The first page is written before the engine has trained anything: its folder must be the engine's by then."""
    plan = sl.studies.Demo(out=tmp_path, minutes=1, models=("ViT",))

    def look(plan, say):
        (plan.path / "shipped").mkdir()
        return []

    def train(plan, say):
        plan.prepare()
        raise EnoughError

    monkeypatch.setattr("sightline.report.demo.look_at_shipped", look)
    monkeypatch.setattr(sl.studies.Demo, "run", train)
    with pytest.raises(EnoughError):
        sl.report.run_demo(plan)


def test_a_finished_demo_keeps_its_page(plan, steps, monkeypatch):
    """The first page, about the shipped models alone, is not written over the last one, nor taken for it."""
    first, *others = [path for step in steps for path in step.results][:3]
    monkeypatch.setattr("sightline.report.demo.look_at_shipped", lambda plan, say: [first])
    monkeypatch.setattr(sl.studies.Demo, "run", lambda self, say: iter([sl.studies.demo.Step("", tuple(others))]))
    short = replace(plan, minutes=1)
    short.path.mkdir()
    monkeypatch.setattr(
        "sightline.report.demo.named_results", lambda paths, plan: {p.stem: sl.Result.load(p) for p in paths}
    )
    titles = []

    def write(results, folder, title):
        titles.append(title)
        return sl.write_report(results, folder, title)

    monkeypatch.setattr("sightline.report.demo.write_report", write)
    sl.report.run_demo(short, say=lambda text: None)
    page = sl.report.run_demo(short, say=lambda text: None).page
    assert len(titles) == 2
    assert "trained from scratch" in Path(page).read_text()


def test_models_of_the_package_are_looked_at_first(plan, monkeypatch):
    monkeypatch.setattr("sightline.report.demo.shipped", lambda: ["vit-nano4.cifar10"])
    monkeypatch.setattr("sightline.report.demo.is_prepared", lambda name: False)
    said = []
    found = look_at_shipped(plan, said.append, n=2)
    assert said == ["vit-nano4.cifar10, from the package: what it sees in 2 images"]
    assert {"head-attention.npz", "feature-pca.npz"} <= {path.name for path in found}
    assert sl.Result.load(found[0]).about.models[0].name == "vit-nano4.cifar10"


def test_the_terminal_has_one_line_per_claim():
    def verdict(claim, value):
        effect = sl.studies.Effect(what="gain", value=value, low=value - 0.1, high=value + 0.1)
        long = "It gains, and so on, and so on, and so on, and so on, and so on, and so on, and so on."
        return sl.studies.Verdict(claim=claim, source="", statement=long, models=("a",), effects=(effect,))

    rows = claim_rows([verdict("V1", 1.0), verdict("V1", -1.0), verdict("V1", 0.0), verdict("V7", 1.0)])
    assert [(r["claim"], r["holds"], r["not"], r["undecided"]) for r in rows] == [("V1", 1, 1, 1), ("V7", 1, 0, 0)]
    assert rows[0]["paper"].endswith("...")
    assert rows[1]["paper"] == "Near patches: similar position embeddings"
    assert len(rows[0]["paper"]) <= STATEMENT
    assert all(len(c.brief) <= STATEMENT for c in CLAIMS)
