"""Looking and comparing: everything that applies, one file each, taken up again, honest about the rest."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sightline as sl
from tests import peers


@pytest.fixture(scope="module")
def data():
    return sl.dataset("scenes/shape", split="test", num=24, size=32)


@pytest.fixture(scope="module")
def vit():
    return peers.fill(sl.build("vit-nano4", classes=20, depth=2), std=0.1)


@pytest.fixture(scope="module")
def cnn():
    return peers.fill(sl.build("bit-nano", classes=20), std=0.1)


def states(rows):
    return {row.name: row.state for row in rows}


def test_look_at_a_vit_and_again(vit, data, tmp_path):
    rows = sl.look(vit, data, tmp_path, n=16)
    apart = {row.name: row.why for row in rows if row.state != "done"}
    assert list(apart) == ["outlier-tokens-register"]
    assert "No patch of ViT 2x64 is an outlier" in apart["outlier-tokens-register"]
    for row in [row for row in rows if row.state == "done"]:
        found = sl.Result.load(tmp_path / row.path)
        assert found.caption
        assert found.summary().keys() == row.numbers.keys()
    assert len(json.loads((tmp_path / "summary.json").read_text())) == len(rows)
    (tmp_path / "residual.npz").unlink()
    (tmp_path / "cka.npz").write_bytes(b"half a file")
    again = states(sl.look(vit, data, tmp_path, n=16))
    assert {name for name, state in again.items() if state == "done"} == {"residual", "cka"}
    assert set(states(sl.look(vit, data, tmp_path, n=12, only=["positions", "residual"])).values()) == {"done"}


def test_a_folder_with_broken_images_is_looked_at_without_them(cnn, tmp_path, caplog):
    """As people have them: an analysis of the others, not a failure of every analysis."""
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3), np.uint8)):
        Image.fromarray(image).save(tmp_path / "photos" / f"{i:02}.png")
    for i in (1, 5):
        (tmp_path / "photos" / f"{i:02}.png").write_bytes(b"no image")
    folder = sl.Folder(tmp_path / "photos")
    rows = sl.look(cnn, folder, tmp_path / "out", only=["residual"])
    assert set(states(rows).values()) == {"done"}
    assert "2 of 12 images cannot be read and are left out" in caplog.text
    assert "01.png" in caplog.text
    again = sl.look(cnn, folder, tmp_path / "out", only=["residual"])
    assert set(states(again).values()) == {"kept"}
    (tmp_path / "broken").mkdir()
    for i in range(3):
        (tmp_path / "broken" / f"{i}.png").write_bytes(b"no image")
    with pytest.raises(sl.data.TooManyBad, match="sightline data check"):
        sl.look(cnn, sl.Folder(tmp_path / "broken"), tmp_path / "none", only=["residual"])


def test_look_at_a_cnn_lists_what_does_not_apply(cnn, data, tmp_path):
    rows = {row.name: row for row in sl.look(cnn, data, tmp_path, n=16)}
    apart = {name for name, row in rows.items() if row.state == "does not apply"}
    rollouts = {
        "rollout",
        "rollout-identity",
        "rollout-gradient",
        "attribution-rollout",
        "attribution-rollout-gradient",
    }
    tokens = {"outlier-tokens", "outlier-tokens-register", "position-content"}
    maps = {"attention-distance", "attention-maps", "head-attention", "what-if", "positions"}
    assert apart == rollouts | tokens | maps
    assert all(rows[name].why for name in apart)
    assert all(row.state == "done" for name, row in rows.items() if name not in apart)


def test_look_at_a_mixer_needs_no_attention(data, tmp_path):
    mixer = peers.fill(sl.build("mixer-nano8", classes=20, depth=1), std=0.1)
    rows = {row.name: row for row in sl.look(mixer, data, tmp_path, n=12)}
    apart = {name: row.why for name, row in rows.items() if row.state != "done"}
    assert set(apart) == {
        "attention-distance", "attention-maps", "head-attention", "position-content", "positions", "outlier-tokens",
        "outlier-tokens-register", "rollout", "rollout-identity", "rollout-gradient", "attribution-rollout",
        "attribution-rollout-gradient",
    }  # fmt: skip
    assert all("has no attention" in why or "no position embedding" in why for why in apart.values())
    residual = sl.Result.load(tmp_path / rows["residual"].path)
    assert residual.sublayers == ("mixing", "mlp")
    assert residual.per_token.shape[2] == 16
    lens = sl.Result.load(tmp_path / rows["logit-lens"].path)
    assert lens.about.models[0].kind == "mixer"
    with pytest.raises(ValueError, match="has no attention"):
        sl.attention_distance(mixer, data, n=4)


def test_parts_of_a_mixer_are_switched_off(data):
    mixer = peers.fill(sl.build("mixer-nano4", classes=20, depth=2), std=0.1).eval()
    adopted = sl.adopt(peers.timm_mixer(mixer, peers.timm.models.mlp_mixer.MlpMixer(
        20, 32, 3, 4, num_blocks=2, embed_dim=64, mlp_ratio=(1.0, 4.0))))  # fmt: skip
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for off in ("block 1", "mixing 0", "mlp 1", "skip 1"):
            answers = []
            for model in (mixer, adopted):
                with sl.observe.switch_off(model, off):
                    answers.append(model(x))
            torch.testing.assert_close(*answers, atol=1e-4, rtol=1e-4)
            assert not torch.allclose(answers[0], mixer(x))
        with sl.observe.switch_off(mixer, "mixing 0", "mlp 0"):
            without_both = mixer(x)
        with sl.observe.switch_off(mixer, "block 0"):
            torch.testing.assert_close(mixer(x), without_both)
    for off in ("attention 0", "head 0.1", "token 3", "prefix 0"):
        with pytest.raises(ValueError, match="is a Mixer, of which block, mixing, mlp, skip can be switched off"):
            sl.what_if(mixer, data, off)
    with pytest.raises(ValueError, match="has attention, no token mixing"):
        sl.what_if(sl.build("vit-nano4", depth=1), data, "mixing 0")


def test_compare(vit, cnn, data, tmp_path):
    rows = sl.compare(vit, cnn, data, tmp_path, n=12)
    found = states(rows)
    assert found["cka"] == found["head-subsets"] == found["block-similarity"] == "done"
    assert found["attention-distance-b"] == "does not apply"
    assert "failed" not in found.values()
    other = states(sl.compare(vit, vit, data, tmp_path / "same", n=24, only=["head-subsets", "cka"]))
    assert other == {"cka": "done", "head-subsets": "does not apply"}


def test_probes_and_masks_where_the_images_have_them(vit, tmp_path):
    only = ["probes", "token-probes", "object-focus"]
    shapes = sl.dataset("scenes/shape", split="test", num=40, size=32)
    found = {row.name: row for row in sl.look(vit, shapes, tmp_path / "a", n=40, only=only)}
    assert {row.state for row in found.values()} == {"done"}
    probes = sl.Result.load(tmp_path / "a/probes.npz")
    assert probes.accuracy.shape == (3, 2)
    assert 15 < probes.how["n"] < 21  # half of the images, but for classes of which there is one
    plain = sl.data.Arrays(np.stack([shapes[i][0] for i in range(8)]), np.zeros(8, np.int64))
    why = {row.name: row.why for row in sl.look(vit, plain, tmp_path / "b", only=only)}
    assert "hold 1 classes" in why["probes"]
    assert "no masks" in why["object-focus"]
    several = sl.data.Arrays(np.zeros((8, 32, 32, 3), np.uint8), np.eye(8, 3) > 0)
    assert "several labels" in sl.look(vit, several, tmp_path / "c", only=["probes"])[0].why
    counting = sl.dataset("scenes/count", split="test", num=8, size=32)
    assert "one object" in sl.look(vit, counting, tmp_path / "d", only=["object-focus"])[0].why


def test_comparing_twins(tmp_path):
    data = sl.dataset("scenes/shape", split="test", num=48, size=32)
    twins = [peers.fill(sl.build("vit-nano4", patch=16, depth=2, classes=8, pool=p), std=0.1) for p in ("gap", "cls")]
    tokens = [f"{name}-{side}" for name in ("token-probes", "localization") for side in "ab"]
    rows = sl.compare(*twins, data, tmp_path, n=48, only=["pooling-comparison", "probes", *tokens])
    assert set(states(rows).values()) == {"done"}, rows
    claims = {v.claim for v in sl.verdicts(sl.Result.load(path) for path in tmp_path.glob("*.npz"))}
    assert {"C16", "C17", "C18", "C19"} <= claims
    found = sl.Result.load(tmp_path / "pooling-comparison.npz")
    assert found.curves[0] == "CLS; class token"  # whichever came first
    some = ["pooling-comparison", "probes", "token-probes-a"]
    apart = states(sl.compare(twins[0], twins[0], data, tmp_path / "same", only=some))
    assert apart == {"probes": "done", "pooling-comparison": "does not apply", "token-probes-a": "does not apply"}


def test_a_failure_is_told_and_the_others_go_on(data, tmp_path):
    model = peers.fill(sl.build("vit-nano4", classes=5, depth=2), std=0.1)
    model.blocks[1].attn.forward = lambda x, rows=None: x  # attends to nothing
    rows = {r.name: r for r in sl.look(model, data, tmp_path, n=8, only=["attention-distance", "patch-filters"])}
    assert rows["attention-distance"].state == "failed"
    assert "Expected 2 attention taps, got 1" in rows["attention-distance"].why
    assert rows["patch-filters"].state == "done"


def test_other_libraries(data, tmp_path):
    few = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 64, "num_heads": 2}
    timm = peers.timm.create_model("vit_tiny_patch16_224", num_classes=5, **few)
    rows = sl.look(peers.fill(timm, std=0.1), data, tmp_path / "a", n=16)
    assert {name for name, state in states(rows).items() if state != "done"} <= {"outlier-tokens-register"}, rows
    kinds = peers.torchvision.models.resnet
    resnet = sl.adopt(kinds.ResNet(kinds.BasicBlock, [1, 1, 1, 1], num_classes=5), image=sl.ImageSpec(size=(64, 64)))
    rows = sl.look(resnet, data, tmp_path / "b", n=8)
    assert "failed" not in states(rows).values(), rows


def test_errors(vit, data, tmp_path):
    with pytest.raises(ValueError, match="no analysis 'magic'"):
        sl.look(vit, data, tmp_path, only=["magic"])
    with pytest.raises(ValueError, match="A Dataset is expected"):
        sl.look(vit, torch.rand(4, 3, 32, 32), tmp_path)
    with pytest.raises(ValueError, match="n is"):
        sl.look(vit, data, tmp_path, n=0)
    assert np.isfinite(sl.look(vit, data, tmp_path, n=3, only=["cka", "neighbors"])[1].numbers["neighbors"])


def test_a_cnn_without_residual_units(tmp_path):
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    model = sl.adopt(plain, image=sl.ImageSpec(size=(32, 32)))
    rows = sl.look(model, sl.dataset("scenes/shape", num=64, size=32), tmp_path, n=24)
    assert {row.state for row in rows} == {"done", "does not apply"}
    assert {"cka", "receptive-field", "localization", "probes", "inductive-bias"} <= {
        r.name for r in rows if r.state == "done"
    }
    features = sl.extract(model, sl.dataset("scenes/shape", num=4, size=32), layers="blocks", tokens="gap")
    assert list(features.layers) == ["inner.0", "inner.2"]


def test_quick_is_a_part_and_says_how_far_it_is(vit, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sightline.progress.DELAY", -1.0)
    rows = sl.look(vit, data, tmp_path, n=1, only="quick")
    assert {"attribution", "head-attention"} <= {row.name for row in rows}
    assert "what-if" not in {row.name for row in rows}
    assert f"2 of {len(rows)}: attention-maps" in capsys.readouterr().err
    shown = sl.Result.load(tmp_path / "head-attention.npz")
    assert shown.images.shape[1:3] == (224, 224)  # a scene of 32 pixels is drawn again for people
    large = sl.dataset("scenes/shape", split="test", num=24, size=224)
    assert any(np.abs(shown.images[0].astype(int) - large.image(i)).max() <= 2 for i in range(24))
    assert shown.how["predictions"][0].endswith(" %")


def test_a_name_without_a_letter_is_of_both_models(tmp_path):
    models = [sl.build(name, classes=2) for name in ("vit-nano4", "bit-nano")]
    data = sl.dataset("scenes/shape", num=8, size=32)
    rows = sl.compare(*models, data, tmp_path, only=["residual", "cka-pooled"])
    assert {row.name for row in rows} == {"residual-a", "residual-b", "cka-pooled"}
