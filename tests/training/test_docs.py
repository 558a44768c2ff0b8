"""docs/training.md and docs/cluster.md: the code runs, what it prints is what they show, the job files can be read."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CLUSTER, TRAINING = (ROOT / "docs" / name for name in ("cluster.md", "training.md"))


def blocks(path, kind):
    return re.findall(rf"```{kind}\n(.*?)```", path.read_text(), re.S)


def test_the_calculation_for_vit_h14_is_what_the_page_shows(capsys):
    (code,), (shown,) = blocks(CLUSTER, "python"), blocks(CLUSTER, "text")
    exec(compile(code, "cluster.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_measured_number_in_the_calculation_is_the_saved_one():
    rows = json.loads((ROOT / "benchmarks/results/data.json").read_text())["rows"]
    measured = next(row["ours, images/s"] for row in rows if "simplejpeg" in row["what"])
    assert f"jpeg, per_core = 100e3, {measured} " in CLUSTER.read_text()


@pytest.mark.parametrize("script", blocks(CLUSTER, "bash"))
def test_the_slurm_script_is_bash(script):
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize("text", blocks(CLUSTER, "yaml"))
def test_the_job_files_are_yaml_that_mounts_what_it_names(text):
    for document in yaml.safe_load_all(text):
        if document["kind"] == "Service":
            continue
        spec = document["spec"]
        pod = (spec.get("template") or spec["pytorchReplicaSpecs"]["Worker"]["template"])["spec"]
        (container,) = pod["containers"]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        seconds = next(int(e["value"]) for e in container["env"] if e["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        assert seconds < pod["terminationGracePeriodSeconds"]
        assert all(isinstance(word, str) for word in (*container["command"], *container["args"]))


@pytest.mark.parametrize("code", blocks(TRAINING, "python"))
def test_the_code_of_the_training_page_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "training.md", "exec"), {})


def test_the_training_page_lists_every_recipe():
    import sightline as sl

    text = TRAINING.read_text()
    assert [name for name in sl.recipes.names() if f"| `{name}` |" not in text] == []
