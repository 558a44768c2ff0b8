"""A process that attacks itself: it damages files, opens them under limits of time and memory, and says how that went.

python -m tests.attack.child SEED FOLDER JOBS, a job being [target, first, last], prints one line of JSON per case: what
happened (loaded, refused, foreign, slow), the error, seconds, and the megabytes by which its memory rose.
"""

import contextlib
import json
import logging
import random
import signal
import sys
import time
from pathlib import Path

SECONDS = 20.0  # of one case, before it counts as hanging
ROOM = 2 << 30  # bytes: an image of the largest size that is read takes 1.5 GB on its way to RGB


class TooSlowError(BaseException):
    """Not an Exception: nothing may catch it."""


def main(seed: str, folder: Path, jobs: list[tuple[str, int, int]]) -> None:
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _stop)
    for number, (name, first, last) in enumerate(jobs):
        place = folder / str(number)
        place.mkdir()
        run_job(name, range(first, last), seed, place)


def run_job(name: str, cases: range, seed: str, folder: Path) -> None:
    """The cases of one target."""
    from tests.attack.targets import TARGETS

    target = TARGETS[name]
    limit_memory(None)
    files = target.make(folder)
    valid = {file: file.read_bytes() for file in files}
    for file in files:
        target.open(folder, file)  # everything is imported, and valid files are read
    limit_memory(ROOM)
    for number in cases:
        chance = random.Random(f"{seed} {name} {number}")
        file = chance.choice(files)
        file.write_bytes(target.mutate(valid[file], chance))
        print(json.dumps({"name": name, "case": number, **_open(target, folder, file)}), flush=True)
        file.write_bytes(valid[file])


def _stop(*_: object) -> None:
    raise TooSlowError


def _open(target, folder: Path, file: Path) -> dict[str, object]:
    reset_peak()
    before, start = status("VmRSS"), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    what, error = "loaded", ""
    try:
        target.open(folder, file)
    except TooSlowError:
        what = "slow"
    except ValueError as raised:
        what = "refused"
        if len(str(raised)) > 2000 or "\n" in str(raised).strip():
            what, error = "foreign", f"a message of {len(str(raised))} characters: {raised!s:.150}"
    except BaseException as raised:
        what, error = "foreign", f"{type(raised).__name__}: {raised!s:.150} {_where(raised)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    megabytes = status("VmHWM") - before
    return {"what": what, "error": error, "seconds": time.monotonic() - start, "megabytes": megabytes}


def _where(error: BaseException) -> str:
    """The last line of our own code that it came from."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if "sightline" in path.parts:
            found = f"({path.name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found


def limit_memory(room: int | None) -> None:
    """So many bytes beyond what the process has; None: as many as it likes."""
    import resource

    most = resource.RLIM_INFINITY if room is None else int(status("VmSize") * 2**20) + room
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def reset_peak() -> None:
    with contextlib.suppress(OSError):  # not every system lets a process do this
        Path("/proc/self/clear_refs").write_text("5")


def status(entry: str) -> float:
    """An entry of what Linux knows about this process, in MB."""
    return int(Path("/proc/self/status").read_text().split(f"{entry}:")[1].split()[0]) / 2**10


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
