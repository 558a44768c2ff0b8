"""The page is a pure function of results: complete, escaped, small, and clear about what it cannot show."""

import json
import re
from dataclasses import dataclass, fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from markupsafe import escape

import sightline as sl
from sightline.report.page import sentence
from sightline.spec import ModelId, from_json
from sightline.studies.claims import CLAIMS
from sightline.views import table
from sightline.views.payload import coarser, plane
from sightline.views.table import view_of
from tests.command import run
from tests.views import makers

EVERY = makers.every()
EVIL = "</script><img src=x onerror=alert(1)>&\"'"


class Parsed(HTMLParser):
    """Tags, ids, links; fails on a tag that is closed without being open."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.stack = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[k] for k in ("href", "src", "xlink:href") if k in found]


@pytest.fixture(scope="module")
def page(once):
    return once("page", lambda folder: sl.write_report(EVERY, folder, "Everything")) / "report.html"


def test_a_page_of_every_type(page):
    text = page.read_text()
    parsed = Parsed(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    sections = [a for tag, a in parsed.tags if tag == "section" and a.get("class") == "result"]
    shown = {name for a in sections for name in a["data-results"].split()}
    assert shown == set(EVERY)
    for result in EVERY.values():
        assert str(escape(sentence(result))) in text
    assert len(text) < 10_000_000


def test_nothing_is_loaded_from_elsewhere(page):
    outside = [link for link in Parsed(page.read_text()).links if not link.startswith(("#", "data:", "data/"))]
    assert outside == []
    assert not re.search(r"url\((?!#)", page.read_text())
    assert not re.search(r"(fetch|XMLHttpRequest|import)\s*\(", page.read_text())


def test_images_have_alt_texts(page):
    tags = Parsed(page.read_text()).tags
    drawings = [a for tag, a in tags if tag == "svg" and a.get("aria-hidden") != "true"]
    assert drawings
    assert all(a.get("aria-label") for a in drawings)
    assert all(a.get("data-alt") for tag, a in tags if "data-widget" in a)


def test_every_drawing_has_its_points_within(page):
    """Of wide and slim drawings of every type: a point outside is one that nobody can point at."""
    text = page.read_text()
    charts = re.findall(r'data-points="([^"]+)"><svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    points = {name: found for name, found in payloads(text).items() if name.startswith("points-")}
    assert list(points) == [name for name, *_ in charts]
    assert len(charts) > 40
    for name, wide, high in charts:
        assert points[name]
        assert all(0 <= x <= float(wide) and 0 <= y <= float(high) for x, y, _ in points[name]), name


def test_the_files_beside_it(page):
    folder = page.parent
    told = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    assert [row["name"] for row in told["results"]] == list(EVERY)
    for row in told["results"]:
        assert (folder / row["figure"]).stat().st_size > 1000
        assert type(sl.Result.load(folder / row["data"])) is type(EVERY[row["name"]])
    markdown = (folder / "report.md").read_text()
    assert markdown.count("![") == len(EVERY)
    assert "| claim | verdict |" in markdown


def test_the_same_results_give_the_same_page(tmp_path):
    one, two = (sl.write_report([makers.heads(), makers.mass()], tmp_path / d) for d in "ab")
    assert one.read_bytes() == two.read_bytes()


def test_a_small_page_links_to_its_data(tmp_path):
    text = sl.write_report([makers.mass(), makers.head_attention()], tmp_path, megabytes=0.01).read_text()
    assert 'href="data/ObjectMass.npz"' in text
    assert "1 of 2 images fit on this page" in text
    with pytest.raises(ValueError, match="positive number"):
        sl.write_report([makers.mass()], tmp_path, megabytes=0)


def test_downloads_are_results(tmp_path):
    import base64

    text = sl.write_report([makers.mass()], tmp_path).read_text()
    (data,) = re.findall(r'href="data:application/octet-stream;base64,([^"]+)"', text)
    (tmp_path / "down.npz").write_bytes(base64.b64decode(data))
    np.testing.assert_array_equal(sl.Result.load(tmp_path / "down.npz").mass, makers.mass().mass)


CHANGED = {
    "CKA": replace(makers.cka(), similarity=makers.cka().similarity * 0.5),
    "AttentionDistance": makers.distance(low=(1.0, 2.0, 3.0)),
    "ReceptiveField": makers.receptive(3.0),
    "ResidualRatios": makers.residual(ratio=9.0),
    "Localization": makers.localization(0.3),
    "FewShot": makers.fewshot(first=0.1),
    "Episodes": makers.episodes(few=0.7),
    "LayerProbes": makers.layer_probes(cls_end=0.2),
    "HeadSubsets": makers.heads(0.1, 0.3),
    "PatchFilters": makers.filters(low=0.3),
    "PositionSimilarity": makers.positions(decay=0.5),
    "ObjectMass": makers.mass(mass_=0.1),
    "WhatIf": replace(makers.what_if(), accuracy=np.array([0.9, 0.1])),
    "InductiveBias": replace(makers.biases(), locality_first=0.1),
    "Attribution": replace(makers.attribution(), insertion=np.zeros(3)),
    "Vtab": sl.evals.vtab_references()[2],
    "FeaturePCA": replace(makers.feature_pca(), explained=np.array([0.1, 0.2, 0.3])),
    "HeadAttention": replace(makers.head_attention(), peaks=makers.head_attention().peaks * 0.1),
    "BlockSimilarity": replace(makers.scale(), similarity=makers.scale().similarity * 0.5),
    "ProbeAccuracy": makers.probes(0.3),
    "Curves": makers.curves(end=1.5),
    "ObjectFocus": makers.focus(0.1),
    "PoolingComparison": makers.pooling(0.6),
}


@pytest.mark.parametrize("name", CHANGED)
def test_sentences_change_when_the_numbers_do(name):
    before = next(r for key, r in EVERY.items() if key.endswith("-" + name))
    assert sentence(before) != sentence(CHANGED[name])


def test_names_stay_text(tmp_path):
    model = ModelId(name=EVIL, kind="vit", pool="cls")
    results = [
        makers.classification(classes=(EVIL, "dog", "owl")),
        replace(makers.cka(models=(model,)), title=EVIL, caption=EVIL, rows=(EVIL, *"bcdef")),
        replace(makers.fewshot(), classes=(EVIL, "b", "c", "d"), how={"model": EVIL}),
        replace(makers.distance(model=model), title=EVIL),
    ]
    page = sl.write_report(dict(zip([EVIL, "b", "c", "d"], results)), tmp_path, EVIL)
    text = page.read_text()
    tags = Parsed(text).tags
    assert not [a for tag, a in tags if tag == "img" or "onerror" in a]
    assert "<img src=x" not in text
    assert "<img" not in (tmp_path / "report.md").read_text()
    assert all(p.parent == tmp_path / "data" for p in (tmp_path / "data").iterdir())


def test_a_huge_heat_map_is_shown_as_means(tmp_path):
    big = makers.cka(1000, 1000)
    big = replace(big, replicates=big.replicates[:0])  # 20 copies, which only the file beside the page would hold
    page = sl.write_report([big], tmp_path)
    assert page.stat().st_size < 10_000_000
    assert "1,000 x 1,000 values are shown as means of 3 x 3" in page.read_text()


def test_means_of_groups():
    values = np.arange(801 * 3, dtype=float).reshape(801, 3)
    values[0, 0] = np.nan
    small, labels, notice = coarser(values, (tuple(map(str, range(801))), ("a", "b", "c")))
    assert small.shape == (267, 3)
    assert small[0, 0] == values[1:3, 0].mean()
    assert small[1, 1] == values[3:6, 1].mean()
    assert labels[0][1] == "3 … 5"
    assert notice


def test_planes_keep_values_and_gaps():
    import base64
    import zlib

    values = np.array([[0.25, np.nan, np.inf], [-0.5, 1.0, -np.inf]])
    p = plane(values)
    whole = np.frombuffer(zlib.decompress(base64.b64decode(p["data"])), "<u2").reshape(2, 3)
    back = p["low"] + whole * (p["high"] - p["low"]) / 65532
    for code, value in ((65533, np.nan), (65534, np.inf), (65535, -np.inf)):
        back = np.where(whole == code, value, back)
    np.testing.assert_allclose(back, values, atol=1e-4)


def test_a_page_has_room_for_one_image_at_least():
    r = makers.head_attention()
    whole, small = (view_of(r).payload_of(r, room) for room in (1 << 20, 10))
    assert whole["shape"][0] == 2
    assert small["shape"][0] == 1
    assert "1 of 2 images" in small["notice"]


@pytest.fixture
def folder(tmp_path):
    makers.mass().save(tmp_path / "mass.npz")
    return tmp_path


def test_the_verb(capsys, folder):
    code, out, err = run(capsys, "report", str(folder), "--out", str(folder / "page"), "--title", "Ours")
    assert (code, err) == (0, "")
    assert "report.html" in out
    assert "<h1>Ours</h1>" in (folder / "page/report.html").read_text()
    code, out, _ = run(capsys, "report", str(folder / "mass.npz"), "--out", str(folder / "page"), "--json")
    assert json.loads(out)["bytes"] > 1000


def test_what_cannot_be_read_is_told_on_the_page(folder):
    @dataclass(frozen=True, kw_only=True)
    class FromTheFuture(sl.Result):
        x: int = 1

    FromTheFuture(title="", caption="").save(folder / "future.npz")
    old = np.load(makers.heads().save(folder / "old.npz"))
    head = str(old["__head__"]).replace('"block"', '"blocc"')
    np.savez(folder / "old.npz", **{**old, "__head__": np.array(head)})
    np.savez(folder / "other.npz", x=np.zeros(3))
    (folder / "summary.json").write_text('[{"name": "rollout", "state": "does not apply", "why": "a CNN"}]')
    text_type = FromTheFuture.__name__
    del FromTheFuture
    import gc

    gc.collect()
    text = sl.write_report(folder, folder / "page").read_text()
    assert "of another version of Sightline" in text
    assert "other.npz is not a saved Sightline result" in text
    assert "rollout: does not apply (a CNN)." in text
    assert text_type
    assert str(folder) not in text


@pytest.mark.parametrize("case", ["empty", "missing", "other", "unknown", "old"])
def test_a_users_mistake_is_one_sentence_and_exit_2(capsys, tmp_path, case):
    where = tmp_path / "results"
    match case:
        case "empty":
            where.mkdir()
        case "other":
            where = tmp_path / "other.npz"
            np.savez(where, x=np.zeros(3))
        case "unknown" | "old":
            where = makers.heads().save(tmp_path / "r.npz")
            held = dict(np.load(where))
            word = '"HeadSubsets"' if case == "unknown" else '"block"'
            held["__head__"] = np.array(str(held["__head__"]).replace(word, '"nothing"'))
            np.savez(where, **held)
    code, out, err = run(capsys, "report", str(where), "--out", str(tmp_path / "page"))
    assert code == 2
    assert out == ""
    assert err.startswith("sightline: ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "page").exists()


def test_damaged_numbers_do_not_take_the_page_along(tmp_path):
    bad = replace(makers.distance(), pixels=np.zeros((0, 3)))
    text = sl.write_report([bad, makers.mass()], tmp_path).read_text()
    assert "could not be drawn" in text
    assert "are inconsistent" in text
    assert str(escape(sentence(makers.mass()))) in text


def poisoned(result, value):
    """The same with one value of every array replaced."""
    changed = {}
    for f in fields(result):
        array = getattr(result, f.name)
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size:
            changed[f.name] = array.copy()
            changed[f.name].flat[0] = value
    return replace(result, **changed)


def payloads(text):
    """Everything that the page hands to its script, as strict JSON."""
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', text, re.S)
    return {name: json.loads(body, parse_constant=pytest.fail) for name, body in found}


def test_what_is_not_finite_is_drawn_around_and_shown(tmp_path, monkeypatch):
    """Every type of result with a hole in every array: figures draw what is finite, the page is strict JSON.

    For phones, where a drawing that fails is replaced by the wide one anyway, nothing is drawn here.
    """
    monkeypatch.delattr("sightline.report.page.narrow_drawing")
    holes = {name: (np.inf, np.nan)[i % 2] for i, name in enumerate(EVERY)}  # one page shows half of the types each way
    page = sl.write_report({name: poisoned(r, holes[name]) for name, r in EVERY.items()}, tmp_path)
    text = page.read_text()
    assert "could not be" not in text
    assert len(payloads(text)) > 5
    told = from_json((tmp_path / "results.json").read_text())
    json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert not all(np.isfinite(v) for row in told["results"] for v in row["summary"].values())
    assert "∞" in text
    assert "not a number" in text


class Broken(sl.Result):
    """Nothing about it can be told."""

    def summary(self):
        raise AttributeError("it has no numbers")


def test_one_broken_result_is_named_with_its_reason_and_the_others_stay(tmp_path, monkeypatch):
    def fails(*anything):
        raise AssertionError("out of order")

    fail = {sl.analysis.CKA: {"payload": fails}, sl.analysis.HeadSubsets: {"draw": fails}}
    monkeypatch.setattr(table, "VIEWS", tuple(replace(v, **fail.get(v.of, {})) for v in table.VIEWS))
    monkeypatch.setattr("sightline.report.write.CLAIMS", [replace(c, judge=fails) for c in CLAIMS if c.number == "C8"])
    found = {
        "bad": Broken(title="bad", caption=""),
        "cka": makers.cka(),
        "heads": makers.heads(),
        "mass": makers.mass(),
    }
    text = sl.write_report(found, tmp_path).read_text()
    assert "it has no numbers" in text
    assert "The interactive view could not be created (out of order)" in text
    assert "C8 could not be judged (out of order)" in text
    assert "heads could not be drawn (out of order)" in text
    assert str(escape(sentence(makers.mass()))) in text
    shown = [a["data-results"] for tag, a in Parsed(text).tags if tag == "section" and a.get("class") == "result"]
    assert {name for names in shown for name in names.split()} == set(found)


def test_what_is_no_result_is_refused(tmp_path):
    for given in ([], [3], 3, {}):
        with pytest.raises(ValueError, match="result"):
            sl.write_report(given, tmp_path)


def test_two_models_stand_side_by_side(tmp_path):
    one, other = (
        replace(makers.feature_pca(), about=makers.about(m, analysis=f"feature-pca-{side}"))
        for side, m in (("a", makers.VIT), ("b", makers.CNN))
    )
    sections = [a for tag, a in Parsed(sl.write_report([one, other], tmp_path).read_text()).tags if tag == "section"]
    assert sections[0]["data-results"] == "feature-pca-a feature-pca-b"  # what can be explored leads the page


def test_a_run_folder_gives_its_curves(tmp_path):
    data = sl.dataset("scenes/shape", num=16, size=32)
    recipe = sl.Recipe(lr=1e-3, batch=8, steps=2, log_every=1)
    sl.fit(sl.build("vit-nano4", classes=10, depth=1), data, recipe, out=tmp_path / "run")
    text = sl.write_report(tmp_path / "run", tmp_path / "page").read_text()
    assert "After 2 steps" in text
    assert "scenes/shape" in text


def test_a_page_opens_with_the_accuracy_of_a_run_and_then_with_images(tmp_path):
    data = sl.dataset("scenes/shape", num=16, size=32)
    recipe = sl.Recipe(lr=1e-3, batch=8, steps=1)
    run = sl.fit(sl.build("vit-nano4", classes=10, depth=1), data, recipe, out=tmp_path / "run")
    sl.training.evaluate_run(run, data)
    text = sl.write_report([makers.feature_pca(), makers.distance(), run.path], tmp_path / "page").read_text()
    (number,) = re.findall(r'<p class="headlines"><span>(.*?)</span>\s*<a href="#run-test">run <b>([\d.]+ %)</b>', text)
    assert number[0] == "Accuracy on 16 images of scenes/shape:"
    assert number[1] == f"{100 * sl.Result.load(run.path / 'test.npz').top1:.1f} %"
    assert text.index('class="headlines"') < text.index("<main>")
    assert headings(text) == [
        "An image on its way through the network (PCA of features)",
        "Accuracy",
        "The papers’ claims, tested on these results",
        "Attention distance",
        "Training",
    ]


def test_a_dataset_goes_by_its_name_where_any_result_knows_it(tmp_path):
    """Its fingerprint, which says nothing to people, stands in a heading only if no result on the page knows better."""

    def scored(model, images, **how):
        r = makers.classification()
        return replace(r, about=makers.about(replace(makers.VIT, name=model), images=images), how=how)

    known = replace(makers.distance(), how={"data": "/home/someone/pets/test"})
    known = replace(known, about=replace(known.about, images="0a1b2c3d4e5f-n16-seed0"))
    two = [scored("one", "0a1b2c3d4e5f"), scored("two", "ffffffffffff", dataset="cifar10")]
    text = sl.write_report([known, *two], tmp_path).read_text()
    assert {"Accuracy · pets/test", "Accuracy · cifar10"} <= set(headings(text))
    assert "0a1b2c" not in text.split("<script")[0]
    assert "someone" not in text
    text = sl.write_report(two, tmp_path).read_text()
    assert {"Accuracy · one", "Accuracy · two"} <= set(headings(text))
    links = re.findall(r'<div>Accuracy: <a href="#[\w-]+">one</a> · <a href="#[\w-]+">two</a></div>', text)
    assert len(links) == 1


def test_several_pairs_of_models_share_a_heading_that_names_none_of_them(tmp_path):
    third = replace(makers.VIT, name="third", fingerprint="3333")
    pairs = [makers.cka(models=(makers.VIT, other)) for other in (makers.CNN, third)]
    named = {r.about.names[1]: replace(r, about=replace(r.about, analysis="cka")) for r in pairs}
    text = sl.write_report(named, tmp_path).read_text()
    assert "Similarity of layers (CKA): pairs of models" in headings(text)
    assert "<h3>small ViT and third</h3>" in text


def test_predictions_and_sketches_are_on_the_page(tmp_path):
    said = replace(makers.feature_pca(), how={"predictions": ["beagle 83 %", "pug 40 %"]})
    text = sl.write_report([said, makers.distance()], tmp_path).read_text()
    assert '"captions":["beagle (83 %)"' in text
    assert "Our sketch of the paper’s figure" in text
    assert text.count('class="drawn wide"') == text.count('class="drawn slim"') > 0


def test_verdicts_are_grouped_by_claim(page):
    text = page.read_text()
    claims = re.findall(r'class="by-claim" id="claim-(\w+)"', text)
    assert len(claims) == len(set(claims)) > 5


def test_no_text_of_a_drawing_is_small(page):
    sizes = [float(s) for s in re.findall(r"font: (?:[a-z]+ )*([\d.]+)px", page.read_text())]
    assert sizes
    assert min(sizes) >= 10  # of figures that are shown at 1.12 pixels per unit or more


def headings(text):
    return re.findall(r"<h2>(.*?)</h2>", text)


def test_two_models_of_one_name_are_two_on_the_page(tmp_path):
    for name, fingerprint in (("first", "1111"), ("second", "2222")):
        (tmp_path / name).mkdir()
        about = makers.about(replace(makers.VIT, name="model", fingerprint=fingerprint))
        replace(makers.distance(), about=about).save(tmp_path / name / "distance.npz")
    text = sl.write_report([tmp_path / "first", tmp_path / "second"], tmp_path / "page").read_text()
    assert "2 results about model (first) and model (second)." in text
    assert {"<h3>model (first)</h3>", "<h3>model (second)</h3>"} <= set(re.findall("<h3>.*?</h3>", text))
    told = from_json((tmp_path / "page/results.json").read_text())
    assert [row["about"]["models"][0]["fingerprint"] for row in told["results"]] == ["1111", "2222"]
    assert {v["fingerprints"][0] for v in told["verdicts"]} == {"1111", "2222"}


def test_results_on_different_images_stand_apart_and_the_page_says_why(tmp_path):
    vit, cnn = makers.receptive(12.0), makers.receptive(5.0, model=makers.CNN)
    both = [
        replace(r, about=replace(r.about, images=images), how={**r.how, "data": images})
        for r, images in ((vit, "cats"), (cnn, "dogs"))
    ]
    text = sl.write_report(both, tmp_path).read_text()
    assert {f"Effective receptive fields · {data}" for data in ("cats", "dogs")} <= set(headings(text))
    assert "Not compared: the two were measured on different images." in text
    same = [replace(r, about=replace(r.about, images="cats")) for r in both]
    text = sl.write_report(same, tmp_path).read_text()
    assert "Effective receptive fields" in headings(text)
    assert "ot compared" not in text


def test_verdicts_stand_beside_the_results_they_are_about(tmp_path):
    other = replace(makers.VIT, name="other ViT", fingerprint="1111")
    found = {"vit": makers.distance(), "scale": makers.scale(), "other": makers.residual(model=other)}
    text = sl.write_report(found, tmp_path).read_text()
    beside = {
        s[:20]: re.findall(r'class="by-claim"><p class="statement"><b>(\w+)', s)
        for s in text.split('<section class="result" id="')[1:]
    }
    shown = {key.split('"')[0]: numbers for key, numbers in beside.items()}
    assert shown == {"vit": ["V8", "C5"], "other": ["C10", "C12"], "scale": []}
