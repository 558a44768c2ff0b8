"""Two processes with gloo: the same losses as one, DDP and FSDP alike; other world sizes; one process killed."""

import json
import multiprocessing
import signal
import socket
import sys

import numpy as np
import pytest

import sightline as sl
from tests.training import ranks

# Halves of a batch are summed in another order: after six steps a ResNet's gradient norm differs by 1e-5 of itself on
# some CPUs, and a weight by 5e-6. An image that is left out or counted twice changes both by a hundred times as much.
CLOSE = 1e-4
CONTEXT = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
if hasattr(CONTEXT, "set_forkserver_preload"):
    CONTEXT.set_forkserver_preload(["torch._dynamo", "sightline.training.loop", "tests.training.ranks"])


def start(folder, *words, world=2):
    """One process per rank, with what torchrun tells it; each writes to a file of its own.

    Their interpreters are copies of one that has imported everything, which costs more than all these trainings.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(world):
        said = folder / f"{words[0]}-{rank}.txt"
        here = {**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append((CONTEXT.Process(target=ranks.main, args=(folder, words, here, said)), said))
        started[-1][0].start()
    return started


def finish(started, seconds=240):
    for process, _ in started:
        process.join(seconds)
    return [process.exitcode for process, _ in started], [said.read_text() for _, said in started]


def numbers(folder):
    rows = sl.Run(folder).rows()
    found = np.array([[r["step"], r["train/loss"], r["norm/gradient"]] for r in rows if "lr" in r])
    assert len(found) == 4
    return found


def validation(folder):
    return np.array([[r["val/loss"], r["val/accuracy"]] for r in sl.Run(folder).rows() if "val/loss" in r])


def train_everything(folder):
    """Every training of this file. Starting a process costs more than a training: one does all, until one is killed.

    The sharded state of two processes is resumed by one, and the other way round.
    """
    ranks.run_all(folder)
    ranks.run_patience(folder)
    ends, said = finish(start(folder, "all", "resume", "patience", "again", "whole", "poison", "killed"))
    (folder / "end.json").write_text(json.dumps({"ends": ends, "said": said}))
    assert (folder / "long-killed").exists(), "\n".join(s[-2000:] for s in said)
    ranks.run_resume(folder)


@pytest.fixture(scope="module")
def trained(once):
    return once("trained", train_everything)


@pytest.mark.slow
def test_many_processes_train_as_one_does(trained):
    one = trained / "ddp-vit-1"
    for kind in ("ddp-vit-2", "fsdp-vit-2"):
        np.testing.assert_allclose(numbers(trained / kind), numbers(one), rtol=CLOSE)
        np.testing.assert_allclose(validation(trained / kind), validation(one), rtol=CLOSE)
        a, b = (sl.load(folder).state_dict() for folder in (trained / kind, one))
        assert all(np.allclose(a[k], b[k], rtol=0, atol=CLOSE) for k in b)
    for kind in ("ddp", "fsdp"):
        for each in ("bit-muon", "masked-shards", "lejepa"):
            both = [numbers(trained / f"{k}-{each}-{n}") for k, n in ((kind, 2), ("ddp", 1))]
            np.testing.assert_allclose(*both, rtol=CLOSE)
    for resumed in ("fsdp-cut-2", "ddp-cut-1"):
        np.testing.assert_allclose(numbers(trained / resumed), numbers(one), rtol=CLOSE)


@pytest.mark.slow
def test_a_stop_changes_no_bit_of_many_processes(trained):
    for kind in ("ddp", "fsdp"):
        for name in ("model.safetensors", "best.safetensors", "state/state.safetensors"):
            whole, halves = (trained / f"{kind}-{part}" / name for part in ("whole", "halves"))
            assert whole.read_bytes() == halves.read_bytes()
        states = sorted(p.name for p in (trained / f"{kind}-halves/state").iterdir())
        assert states == ["before.safetensors", "state.safetensors"]


@pytest.mark.slow
def test_all_processes_lose_patience_together(trained):
    last = {kind: sl.Run(trained / f"{kind}-patience-{n}").rows()[-1]["step"]
            for kind, n in (("ddp", 2), ("fsdp", 2))}  # fmt: skip
    one = sl.Run(trained / "ddp-patience-1").rows()[-1]["step"]
    assert one < 20
    assert last == {"ddp": one, "fsdp": one}


@pytest.mark.slow
def test_one_bad_process_stops_all_with_the_reason(trained):
    said = [(trained / f"poison-{rank}.txt").read_text() for rank in range(2)]
    assert "the loss of another process is not finite" in said[0]
    assert "At step 5 the loss is nan; first seen in the parameter" in said[1]
    assert all("step 3" in text and "lost contact" not in text for text in said)


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_with_a_clear_error_and_it_resumes(trained):
    end = json.loads((trained / "end.json").read_text())
    assert end["ends"] == [1, -signal.SIGKILL]
    assert "lost contact" in end["said"][0]
    assert "same command" in end["said"][0]
    assert "Traceback" not in end["said"][0]
    assert not json.loads((trained / "long-killed/run.json").read_text()).get("ended")
    ends, said = finish(start(trained, "after_the_kill"))
    assert ends == [0, 0], said
    resumed, whole = (trained / f"long-{how}/model.safetensors" for how in ("killed", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()
