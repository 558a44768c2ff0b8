"""A study whose processes are killed ends with the same bytes as one that was left alone, here and on Slurm."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import sightline as sl
from sightline.files import lock
from sightline.studies.definitions.table import STUDIES
from tests.studies.tiny import TINY

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
LIMIT = 600  # seconds; an idle machine takes a tenth


def start(out: Path, place: str = "local") -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.studies.tiny", str(out), place]
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **paths}, **quiet)


def finish(out: Path) -> None:
    """In this process, which starts a worker as any other does."""
    sl.studies.run_studies(["tiny"], out=out)


def finish_on_slurm(out: Path) -> None:
    process = start(out, "slurm")
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said


def outcome(out: Path) -> dict[str, bytes]:
    """All numbers, by their place in the folder."""
    files = [*out.glob("*/*/result.json"), *out.glob("results/tiny.json")]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def wait_for(out: Path, count: int, process: subprocess.Popen) -> None:
    """Until so many tasks are done, or the process has ended."""
    limit = time.monotonic() + LIMIT
    while len(list(out.glob("*/*/result.json"))) < count and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True, scope="module")
def _tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STUDIES, "tiny", TINY)
        yield


@pytest.fixture(scope="module")
def whole(once):
    """The study, left alone."""
    found = outcome(once("whole-study", lambda folder: finish(folder / "out")) / "out")
    assert len(found) == 19
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are found in /proc")
def test_killed_parents_and_children_change_no_byte(whole, tmp_path):
    out = tmp_path / "out"
    process = start(out)
    wait_for(out, 1, process)
    kill(children(process.pid) if process.poll() is None else [])  # the parent starts another child, and goes on
    wait_for(out, 9, process)
    kill([process.pid])  # its child notices within a second
    process.communicate(timeout=LIMIT)
    finish(out)
    assert outcome(out) == whole
    assert not list(out.glob("*/*/failed.json"))


@pytest.fixture
def slurm():
    """A Slurm that runs here, or one that a script starts and another beside it stops again: SIGHTLINE_SLURM_START
    names it, and CI has it next to the checkout. One test at a time, whatever the number of workers."""
    with lock(Path(tempfile.gettempdir()) / "sightline-slurm.lock"):
        started = None if is_up() else start_slurm()
        if not is_up():
            pytest.skip("no Slurm runs here: start one, or name a script that does in SIGHTLINE_SLURM_START")
        if started is not None:
            empty_queue()  # of what an earlier, interrupted test left
        yield
        if started is not None:
            empty_queue()  # a job whose daemons are stopped would hold the node for ever
            subprocess.run([started.with_name("stop")], check=False, capture_output=True)


def empty_queue() -> None:
    subprocess.run(["scancel", "--me"], check=False, capture_output=True)
    limit = time.monotonic() + 30
    while subprocess.run(["squeue", "--me", "--noheader"], check=False, capture_output=True).stdout:
        assert time.monotonic() < limit
        time.sleep(0.2)


def start_slurm() -> Path | None:
    """The script that was run; it needs root."""
    script = Path(os.environ.get("SIGHTLINE_SLURM_START", ROOT.parent / "shared" / "slurm" / "start"))
    if not script.exists() or os.geteuid() != 0:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([script], check=False, capture_output=True, timeout=90)
    return script


def is_up() -> bool:
    if not all(shutil.which(name) for name in ("sbatch", "sinfo", "squeue", "scancel")):
        return False
    try:  # a controller that is there answers at once; without one, sinfo waits for nine seconds
        return subprocess.run(["sinfo"], capture_output=True, timeout=3).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.usefixtures("slurm")
def test_a_cluster_gives_the_same_bytes_also_if_jobs_are_lost(whole, tmp_path):
    """And a partition that does not exist is refused before anything is written; one test, as Slurm starts slowly."""
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="There is no partition 'nowhere'; Slurm knows"):
        sl.studies.run_studies(["data"], out=out, on=sl.studies.Cluster(partition="nowhere"))
    assert not out.exists()
    process = start(out, "slurm")
    wait_for(out, 2, process)
    kill([process.pid])
    process.communicate(timeout=LIMIT)
    arrays = [p.name for p in (out / "slurm").iterdir() if p.name.isdecimal()]
    assert arrays
    subprocess.run(["scancel", "--signal=KILL", "--full", *arrays], check=False, capture_output=True)
    subprocess.run(["scancel", *arrays], check=True, capture_output=True)
    finish_on_slurm(out)
    assert outcome(out) == whole
