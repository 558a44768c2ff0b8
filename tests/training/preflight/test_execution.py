"""What pays is chosen by the length of a run, said, and kept when the run resumes."""

import json
from dataclasses import replace

import pytest
import torch

import sightline as sl
from sightline.training.preflight import execution
from tests.command import run as run_command
from tests.training.tiny import data, losses, recipe


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setattr(execution, "find_compiler", lambda: ("g++", ("g++",)))
    monkeypatch.setattr(execution, "_compiler_works", lambda: True)


def select(name, *, steps, out, asked=(), **settings):
    model = sl.build(name, classes=10)
    r = sl.Recipe(lr=1e-3, batch=128, steps=steps, **settings)
    return sl.training.select_execution(model, r, images=50_000, folder=out, asked=asked)


def test_long_runs_are_compiled_and_short_ones_are_not(tmp_path, compiler):
    long, why = select("vit-micro4", steps=20_000, out=tmp_path)
    assert long.compile
    assert why.startswith("compiled: it pays for")
    short, why = select("vit-micro4", steps=200, out=tmp_path)
    assert not short.compile
    assert "too few" in why
    growing = ((0, 16), (0.3, 20), (0.5, 24), (0.7, 28), (0.9, 32))  # every size is compiled
    assert select("vit-nano4", steps=6000, out=tmp_path)[0].compile
    assert not select("vit-nano4", steps=6000, out=tmp_path, sizes=growing)[0].compile
    assert not select("vit-micro4", steps=20_000, out=tmp_path, task="masked")[0].compile
    assert not select("vit-micro4", steps=20_000, out=tmp_path, asked={"compile"})[0].compile


def test_in_bfloat16_nothing_is_compiled(tmp_path, monkeypatch, compiler):
    monkeypatch.setattr(execution, "computes_bfloat16", lambda: True)
    for name in ("vit-micro4", "bit-basic"):
        found, why = select(name, steps=20_000, out=tmp_path, precision="bfloat16")
        assert (found.compile, why) == (False, "not compiled: in bfloat16 it is not known to pay off")
    monkeypatch.setattr(execution, "computes_bfloat16", lambda: False)  # the run will be one in float32
    found, why = select("bit-basic", steps=20_000, out=tmp_path, precision="bfloat16")
    assert (found.compile, found.precision) == (True, "float32")


def test_nothing_is_compiled_without_a_compiler_that_works(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found, why = select("vit-micro4", steps=20_000, out=tmp_path)
    assert not found.compile
    assert "no C++ compiler" in why
    monkeypatch.setattr(execution, "find_compiler", lambda: ("g++", ("g++",)))
    monkeypatch.setattr(torch, "compile", lambda f: (_ for _ in ()).throw(RuntimeError("no Python.h")))
    found, why = select("vit-micro4", steps=20_000, out=tmp_path)
    assert not found.compile
    assert "does not work here" in why


def test_a_run_keeps_what_it_began_with(tmp_path, compiler):
    model, r = sl.build("bit-nano", classes=10, size=16), recipe(steps=1, layout="channels-last")
    run = sl.fit(model, data()[0], r, out=tmp_path / "run")
    assert run.about["plan"]["layout"] == "channels-last"
    kept, why = select("bit-nano", steps=20_000, out=run.path)
    assert (kept.layout, kept.compile, why) == ("channels-last", False, "not compiled, as the run began")
    about = {**run.about, "identity": {**run.about["identity"], "recipe": {"compile": True}}}
    (run.path / "run.json").write_text(json.dumps(about))
    assert select("bit-nano", steps=2, out=run.path)[0].compile


def test_channels_last_computes_the_same_and_resumes(tmp_path):
    m = {"classes": 10, "size": 16, "units": (1,)}
    plain, last = (
        sl.fit(sl.build("bit-nano", **m), data()[0], recipe(steps=3, layout=how), out=tmp_path / how)
        for how in ("plain", "channels-last")
    )
    torch.testing.assert_close(torch.tensor(losses(last)), torch.tensor(losses(plain)), rtol=1e-4, atol=1e-5)
    r = replace(recipe(), layout="channels-last")
    assert sl.training.prove_resume(sl.build("bit-nano", **m), data()[0], r).holds
    with pytest.raises(ValueError, match="is for convolutions; a ViT has tokens: --set layout=plain"):
        sl.fit(
            sl.build("vit-nano4", classes=10, size=16), data()[0], recipe(layout="channels-last"), out=tmp_path / "no"
        )


def test_the_command_line_says_it(tmp_path, capsys):
    words = ["train", "scenes/shape", "--num", "40", "--size", "16", "--model", "bit-micro", "--val", "none"]
    settings = ["--set", "steps=1", "--set", "warmup=0", "--set", "batch=4"]
    code, _, said = run_command(capsys, *words, *settings, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "core-minutes of training are too few for it to pay off; channels last" in said
    assert "channels last in memory" in said


def test_bfloat16_is_kept_where_the_cpu_computes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "computes_bfloat16", lambda: True)
    assert select("vit-nano4", steps=10, out=tmp_path, precision="bfloat16")[0].precision == "bfloat16"
    monkeypatch.setattr(execution, "computes_bfloat16", lambda: False)
    found, why = select("vit-nano4", steps=10, out=tmp_path, precision="bfloat16")
    assert found.precision == "float32"
    assert "no instructions for bfloat16" in why
    asked = select("vit-nano4", steps=10, out=tmp_path, precision="bfloat16", asked={"precision"})
    assert asked[0].precision == "bfloat16"


def test_a_cpu_that_dies_of_bfloat16_is_found_out_in_another_process(monkeypatch):
    execution.survives_bfloat16.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setattr(execution, "MULTIPLY", "import os; os.abort()")
    try:
        assert not execution.survives_bfloat16()
        with pytest.raises(ValueError, match="--set precision=float32"):
            sl.fit(sl.build("vit-nano4", classes=10, size=16), data(32)[0], recipe(precision="bfloat16"))
    finally:
        execution.survives_bfloat16.cache_clear()
