"""LeJEPA: SIGReg against its closed form, collapse, and runs that use it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.data.draws import Draws
from sightline.training.objectives.lejepa import draw_directions
from sightline.views.table import view_of
from tests.training.tiny import data, interrupt, losses, model, recipe

VIEWS = sl.data.Augment(crop_area=(0.3, 1.0), repeats=2)
GAUSSIAN = math.sqrt(2 * math.pi) - math.sqrt(2 * math.pi / 3)  # expected statistic of standard normal samples


def epps_pulley(x):
    """The statistic in closed form: the integrals over all t of products of Gaussians, pair by pair, in float64."""
    x, n = np.asarray(x, np.float64), len(x)
    pairs = np.exp(-((x[:, None] - x[None]) ** 2) / 2).sum() * math.sqrt(2 * math.pi) / n
    single = np.exp(-(x**2) / 4).sum() * 2 * math.sqrt(math.pi)
    return pairs - single + n * math.sqrt(2 * math.pi / 3)


def sample(n, d=6, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((1, n, d)))


def lejepa(name="vit-nano4", **settings):
    small = {"depth": 2} if "vit" in name else {}
    return sl.training.LeJEPA(sl.build(name, size=16, classes=5, **small), **{"views": 2, **settings})


@given(st.integers(2, 40), st.floats(0.1, 3), st.floats(-2, 2), st.integers(0, 99))
def test_sigreg_is_the_mean_of_epps_pulley_statistics(n, scale, shift, seed):
    x, directions = scale * sample(n, seed=seed) + shift, draw_directions(6, 5, seed)
    want = np.mean([epps_pulley(x[0].numpy() @ directions[:, i].numpy()) for i in range(5)])
    assert float(sl.training.sigreg(x, directions, knots=201, reach=12.0)) == pytest.approx(want, rel=1e-9, abs=1e-9)
    # what training takes leaves out less than exp(-3^2 / 2) of the weight
    assert float(sl.training.sigreg(x, directions)) == pytest.approx(want, rel=0.02, abs=0.012 * n)


def test_sigreg_of_gaussian_samples_is_its_known_bias_whatever_their_number():
    for n in (20, 200):
        drawn = [float(sl.training.sigreg(sample(n, seed=s), draw_directions(6, 32, s))) for s in range(60)]
        assert np.mean(drawn) == pytest.approx(GAUSSIAN, abs=4 * np.std(drawn) / math.sqrt(60) + 0.02)


@pytest.mark.parametrize("shrink", ["to a point", "to a line", "by half", "to another mean"])
def test_sigreg_grows_with_the_samples_that_are_not_gaussian(shrink):
    def of(n):
        x = sample(n)
        x = {
            "to a point": 0 * x,
            "to a line": x[..., :1] * torch.eye(6)[0],
            "by half": x / 2,
            "to another mean": x + 1,
        }[shrink]
        return float(sl.training.sigreg(x.double(), draw_directions(6, 64, 0)))

    assert of(400) > 3 * GAUSSIAN
    assert of(1600) > 3 * of(400)


def test_directions_have_length_one_and_change_with_the_key():
    a, b = draw_directions(8, 16, 1), draw_directions(8, 16, 2)
    assert torch.allclose(a.norm(dim=0), torch.ones(16, dtype=torch.float64))
    assert torch.equal(a, draw_directions(8, 16, 1))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("name", ["vit-nano4", "bit-nano", "r8-vit-nano4"])
def test_every_family_learns_by_it(name):
    objective = lejepa(name)
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    objective(images, None, Draws(0, np.arange(8))).backward()
    assert {n for n, p in objective.model.named_parameters() if p.grad is None} == {"head.weight", "head.bias"}
    first = next(objective.model.parameters())
    assert first.grad is not None
    assert first.grad.abs().max() > 0
    assert objective.unused == ("head.*",)


def test_the_loss_is_the_papers():
    objective = lejepa(weight=0.3).double()
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    z = objective.projector(objective.represent(images)).detach().float().numpy().reshape(3, 2, -1)
    apart = np.mean((z - z.mean(1, keepdims=True)) ** 2)
    directions = draw_directions(z.shape[-1], 256, 5).numpy()
    said = [epps_pulley(z[:, v] @ directions[:, m]) for v in range(2) for m in range(256)]
    got = float(objective(images, None, Draws(5, np.arange(6))).detach())
    assert got == pytest.approx(0.7 * apart + 0.3 * np.mean(said), rel=0.02)


def test_the_statistic_is_not_rounded_to_bfloat16():
    objective, images = lejepa(), torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    objective.projector = torch.nn.Identity()  # what is left of bfloat16 is that of the model
    objective.represent = lambda x: x.flatten(1)[:, :32]
    exact = objective(images, None, Draws(0, np.arange(8)))
    with torch.autocast("cpu", torch.bfloat16):
        assert objective(images, None, Draws(0, np.arange(8))).equal(exact)


def test_views_of_one_image_stay_together():
    train, _ = data()
    images, labels = next(iter(train.batches(model().image, batch=8, train=VIEWS, seed=3)))
    assert labels[::2].equal(labels[1::2])
    assert not images[0].equal(images[1]), "two crops"
    with pytest.raises(ValueError, match="7 images are not 2 views of each"):
        lejepa()(images[:7], None, Draws(0, np.arange(7)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    train, val = data(fraction=0.6)
    settings = {"task": "lejepa", "batch": 16, "steps": 6, "eval_every": 3, "save_every": 2, "augment": VIEWS}
    return sl.fit(model(), train, recipe(**settings), val=val, out=tmp_path_factory.mktemp("whole")), settings


def test_a_run_is_resumed_to_the_bit(whole, tmp_path):
    train, val = data(fraction=0.6)
    run, settings = whole
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, recipe(**settings), val=val, out=tmp_path / "x", evals=((4, interrupt),))
    again = sl.fit(model(), train, recipe(**settings), val=val, out=tmp_path / "x")
    assert (again.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()
    assert losses(again) == losses(run)


def test_neighbors_and_rank_are_logged_and_choose_the_best(whole):
    run, _ = whole
    judged = [row for row in run.rows() if "val/knn" in row]
    assert [row["step"] for row in judged] == [3, 6]
    assert all(0 <= row["val/knn"] <= 1 and row["val/rank"] > 2 and row["val/embedding rank"] > 2 for row in judged)
    assert run.summary()["best"] == pytest.approx(max(row["val/knn"] for row in judged))
    assert run.collapsed == ""
    assert sl.training.list_runs(run.path)[0].accuracy == pytest.approx(judged[-1]["val/knn"])


def same_for_all(net):
    """An evaluator that makes every image look alike."""
    with torch.no_grad():
        net.norm.weight.zero_()
        net.norm.bias.fill_(1.0)
    return {}


@pytest.mark.parametrize("task", ["lejepa", "masked"])
def test_a_collapse_is_never_silent(task, tmp_path, caplog):
    train, val = data(fraction=0.6)
    settings = {"task": task, "steps": 4, "eval_every": 2, "lr": 1e-9, "augment": VIEWS}
    held_out = val if task == "lejepa" else None  # watched on training images then
    run = sl.fit(model(), train, recipe(**settings), val=held_out, out=tmp_path / "x", evals=((2, same_for_all),))
    assert "At step 4 this run has collapsed: the features of all images lie in 0.0 dimensions" in caplog.text
    assert "At step 2" not in caplog.text
    assert run.about["collapsed"] == {"step": 4, "rank": 0.0, "of": "features"}
    assert any("collapsed" in row.get("event", "") for row in run.rows())
    assert sl.training.list_runs(tmp_path)[0].progress == "finished, collapsed"
    assert run.curves().caption.endswith("Collapsed: since step 4 the features of all images lie in 0.0 dimensions.")
    assert "The run has collapsed" in view_of(run.curves()).sentence(run.curves())
    for source in (run.path, run.path / "model.safetensors"):  # whoever tunes these weights hears of it
        caplog.clear()
        assert "since step 4 the features of all images were alike" in str(sl.load(source).loaded.warnings)
        assert "Its training without labels has collapsed" in caplog.text
    (run.path / "run.json").write_text("{")  # weights can be read without it
    assert not sl.load(run.path).loaded.warnings


def test_a_head_that_was_never_trained_does_not_answer(whole):
    """It would give every class the same probability, and call the first one the answer."""
    run, (_, val) = whole[0], data()
    loaded = sl.load(run.path)
    for ask in (lambda: sl.evaluate(loaded, val), lambda: sl.predict(run, val)):
        with pytest.raises(ValueError, match=r"learned without labels, in .* \(lejepa\), and its head is all zeros"):
            ask()
    with torch.no_grad():
        loaded.head.weight += 0.1
    assert sl.evaluate(loaded, val).top1 >= 0


def test_too_few_images_to_tell_are_said(tmp_path, caplog):
    train, _ = data(num=24)
    settings = {"task": "lejepa", "steps": 1, "batch": 8, "augment": VIEWS}
    run = sl.fit(model(), train, recipe(**settings), out=tmp_path / "x")
    assert "fewer than 32 do not tell whether the features collapse" in caplog.text
    assert not any("rank" in name for row in run.rows() for name in row)


def test_equal_embeddings_are_a_collapse_whatever_the_features(tmp_path, caplog):
    """Without SIGReg the projector forgets the images first: the loss is then 0, and the features stay as they were."""
    train, val = data(num=160, fraction=0.7)
    settings = {"task": "lejepa", "steps": 20, "eval_every": 10, "lr": 3e-3, "sigreg": 1e-9, "augment": VIEWS}
    run = sl.fit(model(depth=1), train, recipe(**settings), val=val, out=tmp_path / "x")
    last = run.rows()[-1]
    assert last["val/embedding rank"] == 0 < 2 < last["val/rank"]
    assert run.about["collapsed"]["of"] == "embeddings"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augment": sl.data.Augment()}, "augment.repeats=1 makes one: --set augment.repeats=2"),
        ({"augment": sl.data.Augment(crop_area=None, flip=False, repeats=2)}, "they are all the same"),
        ({"augment": sl.data.Augment(repeats=2, mixup=0.2)}, "which views show the same one: --set augment.mixup=0"),
        ({"augment": sl.data.Augment(repeats=2, cutmix=1.0)}, "--set augment.cutmix=0"),
        ({"augment": sl.data.Augment(repeats=3)}, "3 of each image take a multiple of 3: --set batch=15"),
        ({"micro": 8}, "SIGReg is a statistic of the whole batch"),
        ({"sigreg": 0}, "sigreg=0: expected a share above 0 and below 1"),
        ({"projector": (8, 1)}, "expected \\(hidden width"),
        ({"sizes": ((0, 8), (0.5, 16))}, "for task=classify"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(changes, words, tmp_path):
    train, _ = data()
    with pytest.raises(ValueError, match=words):
        sl.fit(model(), train, recipe(**{"task": "lejepa", "augment": VIEWS, **changes}), out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_recipe_takes_as_many_views_as_the_images_give():
    short = sl.recipes.laptop_lejepa().limit_batch(21)
    assert short.batch == 42
    assert sl.recipes.laptop_lejepa().limit_batch(21, processes=4).batch == 40
