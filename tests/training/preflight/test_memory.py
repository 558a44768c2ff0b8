"""Memory is planned: what is free, what a step takes, passes that fit, and the same passes after a resume."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.training.parallel import ProcessGroup
from sightline.training.preflight import free_memory, memory
from sightline.training.preflight.checks import check_run
from sightline.training.preflight.measure import fit_to_memory
from sightline.training.preflight.memory import MemoryNeed
from sightline.training.train_state import TrainState
from tests.training.tiny import data, interrupt, losses, model, recipe

MIB = 2**20
CPU = torch.device("cpu")


def having(monkeypatch, mib):
    """A machine with so much free memory."""
    monkeypatch.setattr(free_memory, "free_bytes", lambda *_, **__: int(mib * MIB))


@given(
    fixed=st.integers(0, 10**9), image=st.integers(1, 10**8), share=st.integers(1, 4096), free=st.integers(1, 10**11)
)
def test_passes_are_the_largest_halving_that_fits(fixed, image, share, free):
    need = MemoryNeed(fixed=fixed, image=image, share=share)
    micro = need.largest_micro(free)
    assert 1 <= micro <= share
    assert micro == 1 or need.total(micro) <= free
    twice = min(share, 2 * micro)
    assert micro == share or need.total(twice) > free


def test_a_wish_is_met_or_refused_with_what_fits():
    need = MemoryNeed(fixed=10 * MIB, image=MIB, share=128)
    assert memory.select_micro(need, 300 * MIB, CPU, asked=None) == 128  # half of what is free
    assert memory.select_micro(need, 200 * MIB, CPU, asked=None) == 64
    assert memory.select_micro(need, 200 * MIB, CPU, asked=128) == 128  # all of it, where that is asked for
    with pytest.raises(ValueError, match=r"micro=128 images takes up to 138 MiB .* 100 MiB are free: --set micro=16,"):
        memory.select_micro(need, 100 * MIB, CPU, asked=128)
    with pytest.raises(ValueError, match=r"passes of one image .* 11 MiB .* batch of 128 images.*--set batch=32"):
        memory.select_micro(need, 5 * MIB, CPU, asked=None)
    assert memory.select_micro(need, 12 * MIB, CPU, asked=None) == 1  # more than half, but it fits


def test_a_refusal_leaves_nothing_behind(tmp_path, monkeypatch):
    having(monkeypatch, 0.5)
    with pytest.raises(ValueError, match="Even in passes of one image"):
        sl.fit(model(), data()[0], recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_passes_are_chosen_said_and_kept(tmp_path, monkeypatch, capsys):
    having(monkeypatch, 132)
    run = sl.fit(model(), data()[0], recipe(), out=tmp_path / "run")
    plan = json.loads((run.path / "run.json").read_text())["plan"]
    assert 1 <= plan["micro"] < 16
    assert plan["passes"] == -(-16 // plan["micro"])
    assert plan["memory_bytes"] <= plan["free_bytes"] / 2
    said = capsys.readouterr().err
    assert f"a pass of {plan['micro']} images" in said
    assert said.index("memory: at most") < said.index("a step takes about")
    assert run.about["identity"]["recipe"]["micro"] is None  # chosen for this machine, no part of what the run is


def test_a_resumed_run_keeps_its_passes_whatever_is_free(tmp_path, monkeypatch):
    having(monkeypatch, 132)
    whole = sl.fit(model(), data()[0], recipe(steps=6), out=tmp_path / "whole")
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), data()[0], recipe(steps=6), out=tmp_path / "halves", evals=[(3, interrupt)])
    having(monkeypatch, 10_000)
    halves = sl.fit(model(), data()[0], recipe(steps=6), out=tmp_path / "halves")
    assert halves.about["plan"]["micro"] == whole.about["plan"]["micro"] < 16
    assert (halves.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_another_micro_may_be_given_on_the_way(tmp_path):
    train = data()[0]
    with pytest.raises(sl.training.Stopped):
        sl.fit(model(), train, recipe(steps=6, micro=8), out=tmp_path / "run", evals=[(3, interrupt)])
    run = sl.fit(model(), train, recipe(steps=6, micro=4), out=tmp_path / "run")
    assert (run.about["plan"]["micro"], run.about["plan"]["passes"]) == (4, 4)
    whole = sl.fit(model(), train, recipe(steps=6), out=tmp_path / "whole")
    np.testing.assert_allclose(losses(run), losses(whole), rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"augment": sl.data.Augment(mixup=0.5, cutmix=1.0)}, {"loss": "sigmoid", "smoothing": 0.1, "ema": 0.9},
     {"task": "masked"}, {"task": "mae", "corrupt": 0.75, "decoder": (16, 1)}],
    ids=["mixed", "sigmoid", "masked", "mae"],
)  # fmt: skip
def test_passes_change_memory_not_the_gradient(changes):
    train = data()[0]
    grads = []
    for micro in (None, 5):
        m = model()
        torch.nn.init.normal_(m.head.weight, generator=torch.Generator().manual_seed(0))
        state = TrainState(m, recipe(micro=micro, **changes), ProcessGroup())
        batch = next(iter(train.batches(m.image, batch=16, train=state.recipe.augment)))
        state.backward(*batch, step=3)
        grads.append({n: p.grad for n, p in state.params.items() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-4, atol=1e-6)


def test_batch_norm_is_not_split_unasked():
    train = data()[0]
    m = model(norm="batch")
    state = TrainState(m, recipe(), ProcessGroup())
    plan = check_run(m, train, recipe(), val=None, processes=ProcessGroup())
    before = {n: b.clone() for n, b in m.named_buffers()}
    with pytest.raises(ValueError, match=r"BatchNorm computes its statistics .* --set micro=\d"):
        fit_to_memory(state, plan, free=132 * MIB)
    assert all(torch.equal(before[n], b) for n, b in m.named_buffers())


def test_memory_grows_with_the_image_and_with_what_learns():
    def need(**changes):
        r = recipe(**{k: v for k, v in changes.items() if k != "size"})
        return memory.estimate_memory(TrainState(model(size=changes.get("size", 16)), r, ProcessGroup()))

    assert need(size=32).image > 3 * need().image
    assert need(trained=("head.*",)).image < need().image
    assert need(ema=0.9).fixed > need().fixed
    assert need(batch=32).fixed - need().fixed == 16 * 3 * 16 * 16 * 9
    assert need(sizes=((0, 32), (0.5, 16))).image > need().image


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 5 bytes")])
def test_memory_that_runs_out_is_one_sentence(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(TrainState, "backward", fail)
    with pytest.raises(ValueError, match=r"Out of memory in passes of 16 images .* --set micro=8"):
        sl.fit(model(), data()[0], recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_free_memory_of_this_machine():
    assert 0 < free_memory.free_bytes(CPU) < 2**50
    assert free_memory.free_bytes(CPU, processes=1000) < free_memory.free_bytes(CPU)


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_control_groups(tmp_path, version):
    top = tmp_path / "memory" if version == 1 else tmp_path
    names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    (tmp_path / "own").write_text("4:memory:/job/mine\n1:cpu:/other\n" if version == 1 else "0::/job/mine\n")
    for place, limit in (("job", 1000), ("job/mine", "max" if version == 2 else 2**62)):
        (top / place).mkdir(parents=True)
        for name, value in zip(names, (limit, 400)):
            (top / place / f"memory.{name}").write_text(f"{value}\n")
        (top / place / "memory.stat").write_text("anon 300\ninactive_file 50\n")
    assert min(free_memory.cgroup_free(tmp_path, tmp_path / "own")) == 650
    assert free_memory.cgroup_free(tmp_path, Path("/not/there")) == []


def test_macos_says_pages():
    said = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:    100.\nPages active:  900.\n"
    said += "Pages inactive:   50.\nPages speculative:   5.\nPages purgeable:    1.\n"
    assert free_memory.parse_vm_stat(said) == 156 * 16384
