"""What a notebook shows: results, runs, datasets, verdicts and models display themselves."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from torch import nn

import sightline as sl
from sightline.progress import notebook_display


def images(html):
    return re.findall(r'src="data:image/png;base64,[A-Za-z0-9+/=]+"', html)


def test_a_result_is_a_figure_its_sentence_and_its_numbers():
    mass = sl.analysis.ObjectMass(title="<b>Mass</b>", caption="Of 3 images.", mass=np.ones(3) / 2, area=np.ones(3) / 4)
    html = mass._repr_html_()
    assert len(images(html)) == 1
    assert "&lt;b&gt;Mass" in html  # a title is text
    for name in mass.summary():
        assert name in html


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    train, val = sl.dataset("scenes/shape", num=32, size=16).split(0.5)
    model = sl.build("vit-nano4", classes=len(train.classes), size=16)
    recipe = sl.Recipe(lr=1e-3, batch=16, steps=2, log_every=1)
    return sl.fit(model, train, recipe, val=val, out=tmp_path_factory.mktemp("run"))


def test_a_run_shows_its_curves(run):
    html = run._repr_html_()
    assert len(images(html)) == 1
    assert "2 steps, finished" in html
    figure = sl.draw(run)
    assert figure.axes
    assert figure._repr_png_().startswith(b"\x89PNG")  # shown by a notebook that never imported pyplot


class Handle:
    """What IPython's display returns, and IPython itself as far as a kernel needs it."""

    def __init__(self):
        self.shown = []

    def display(self, thing, *, display_id):
        assert display_id
        self.update(thing)
        return self

    def update(self, thing):
        self.shown.append(thing._repr_html_())


def test_a_run_draws_its_curves_while_it_trains(tmp_path, monkeypatch, capsys):
    handle, shell = Handle(), SimpleNamespace(kernel=object())
    notebook = SimpleNamespace(get_ipython=lambda: shell, display=handle)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    train = sl.dataset("scenes/shape", num=16, size=16)
    model = sl.build("vit-nano4", classes=len(train.classes), size=16)
    sl.fit(model, train, sl.Recipe(lr=1e-3, batch=8, steps=3, log_every=1), out=tmp_path / "run")
    assert "1 of 3 steps" in handle.shown[0]
    assert "3 of 3 steps" in handle.shown[-1]
    assert all(images(html) for html in handle.shown)
    assert "train/loss" not in capsys.readouterr().err  # no lines beside the curves
    shell.kernel = None  # IPython on a terminal
    assert notebook_display() is None


def test_predictions_are_images_with_their_classes(tmp_path):
    model = sl.build("vit-nano4", classes=2)
    model.class_names = ("cat", "<dog>")
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    said = sl.predict(model, tmp_path)
    html = said._repr_html_()
    assert len(images(html)) == 1
    assert "cat 50%, &lt;dog&gt; 50%" in html
    assert "1 could not be read" in html
    assert "50.0%" in said[0]._repr_html_()
    assert not images(sl.predict(model, Image.new("RGB", (40, 30)))._repr_html_())


def test_a_dataset_shows_images_with_their_classes():
    data = sl.dataset("scenes/shape", num=40, size=16)
    html = data._repr_html_()
    assert len(images(html)) == 12
    assert "40 images" in html
    assert data.classes[int(data.labels[0])] in html


def test_several_labels_and_unreadable_images(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.jpg").write_bytes(b"no image")
    assert "cannot be read" in sl.Folder(tmp_path)._repr_html_()
    several = sl.data.Arrays(np.zeros((2, 8, 8, 3), np.uint8), np.array([[1, 1], [0, 1]]), classes=("cat", "dog"))
    assert "cat, dog" in several._repr_html_()


def test_models_of_ours_and_of_others():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    for model in (sl.build("vit-nano4"), sl.build("bit-nano"), sl.adopt(net, image=sl.ImageSpec(size=(32, 32)))):
        count = sum(p.numel() for p in model.parameters())
        assert f"{count:,} parameters" in model._repr_html_()


def test_what_has_no_display_says_so():
    with pytest.raises(ValueError, match="no display for a dict"):
        sl.report.to_html({})
