"""A Hugging Face folder tells what is in it, loads in transformers, and is uploaded if asked for."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch

import sightline as sl
from sightline.cli import main
from tests import command, peers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data, test = (sl.dataset("scenes/shape", split=s, num=32, size=16) for s in ("train", "test"))
    train, val = data.split(0.5)
    model = sl.build("vit-nano4", classes=len(data.classes), size=16, depth=2)
    recipe = sl.Recipe(name="tiny", lr=1e-3, batch=16, steps=2, weight_decay=0.03)
    run = sl.fit(model, train, recipe, val=val, out=tmp_path_factory.mktemp("runs") / "shapes")
    sl.training.evaluate_run(run, test)
    return run


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """With the verdicts of saved results, as the command line writes it."""
    out = tmp_path_factory.mktemp("out")
    mass = sl.residual_ratios(run.model, sl.dataset("scenes/shape", num=4, size=16))
    mass.save(out / "looks" / "skips.npz")
    words = ["convert", str(run.folder), str(out / "shapes-hf"), "--to", "hf", "--results", str(out / "looks")]
    main(words)
    return out / "shapes-hf"


def test_the_card_says_data_recipe_accuracy_and_verdicts(run, folder):
    card = (folder / "README.md").read_text(encoding="utf-8")
    front, title, rest = card.split("---")[1], card.split("# ")[1].split("\n")[0], card.split("## Training data")[1]
    assert "pipeline_tag: image-classification" in front
    assert title == "shapes-hf"
    assert "| name | scenes/shape" in rest
    assert "| train | 16 |" in rest
    assert "| weight_decay | 0.03 |" in rest
    assert "| lr | 0.001 |" in rest
    assert "| betas | 0.9, 0.999 |" in rest
    assert not {"momentum", "corrupt", "queries", "sigreg", "log_every"} & {  # of other optimizers and tasks
        line.split(" | ")[0].removeprefix("| ") for line in rest.splitlines()
    }
    accuracy = sl.Result.load(run.path / "test.npz").summary()["top-1"]
    assert f"| test: top-1 | {sl.spec.number(accuracy)} |" in rest
    assert re.search(r"validation accuracy of \d+ images \(the best", rest)  # not "1", of nobody knows how many
    (verdict, *_) = sl.verdicts([sl.Result.load(folder.parent / "looks" / "skips.npz")])
    assert f"| {verdict.claim} | {verdict.state} |" in rest
    assert str(run.path.parent) not in card  # nobody's folders


def test_transformers_gives_the_same_logits(run, folder):
    transformers = peers.transformers
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(images).logits, run.model.eval()(images), atol=1e-5, rtol=1e-4)
    assert theirs.config.id2label[0] == run.model.class_names[0]
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    assert tuple(processor.image_mean) == run.model.image.mean


def test_weights_that_changed_since_the_run_do_not_claim_its_accuracy(run, tmp_path):
    model = run.model
    with torch.no_grad():
        model.head.bias += 1
    card = (sl.save(model, tmp_path / "hub", to="hf") / "README.md").read_text()
    assert "not those of a run folder" in card
    assert "Not measured" in card


def test_names_cannot_break_the_table(tmp_path):
    model = sl.build("vit-nano4", classes=2, depth=1)
    card = (sl.save(model, tmp_path / "hub", to="hf", classes=["a|b\nc", "<script>"]) / "README.md").read_text()
    assert "| classes | 2: a\\|b c, &lt;script> |" in card


class Hub:
    """huggingface_hub as far as it is used here."""

    def __init__(self, error=None):
        self.error, self.calls = error, []

    def create_repo(self, name, **how):
        if self.error:
            raise self.error
        self.calls.append((name, how))
        return f"https://hub/{name}"

    def upload_folder(self, **how):
        self.calls.append(how)


def test_push_uploads_the_folder(folder, monkeypatch):
    hub = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=lambda: hub))
    assert sl.weights.push(folder, "me/shapes") == "https://hub/me/shapes"
    (name, how), upload = hub.calls
    assert (name, how["private"]) == ("me/shapes", True)
    assert upload["folder_path"] == folder
    assert {p.name for p in folder.iterdir()} == set(upload["allow_patterns"])


def test_push_that_cannot_is_one_sentence(folder, monkeypatch, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"has no config\.json: write it with sl\.save"):
        sl.weights.push(tmp_path, "me/shapes")
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=lambda: Hub(OSError("no token\nat all"))))
    with pytest.raises(ValueError, match=r"was not uploaded to me/shapes \(no token\)"):
        sl.weights.push(folder, "me/shapes")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"needs huggingface_hub: pip install 'sightline\[hub\]'"):
        sl.weights.push(folder, "me/shapes")
    words = ["convert", "a.npz", str(tmp_path / "b.npz"), "--to", "npz", "--push", "me/b"]
    code, _, said = command.run(capsys, *words)
    assert code == 2
    assert "are for a Hugging Face folder" in said
