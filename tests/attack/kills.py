"""Kill training, studies, look and report without warning, at random moments and inside every kind of write, and run
them again.

    python -m tests.attack.kills [KILLS] [COMMAND ...]        100 in all by default; `make attack` runs it

Every command must end with the same bytes as one that nobody disturbed. A study runs in one process, where it is killed
inside its writes, too, and in two: then its worker is killed, or the process that started it, or both. Prints a table;
exits 1 if anything differs.
"""

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

KINDS, FIRST = ("write", "replace", "fsync"), 7


def train(out: Path) -> None:
    import sightline as sl

    data, val = sl.dataset("scenes/shape", num=48, size=16).split(0.75)
    model = sl.build("vit-nano4", classes=len(data.classes), size=16, depth=1, dropout=0.1, drop_path=0.1)
    recipe = sl.Recipe(
        **{"lr": 1e-3, "batch": 8, "micro": 4, "steps": 8, "warmup": 3, "clip": 1.0, "ema": 0.9, "weight_decay": 0.1},
        **{"save_every": 2, "eval_every": 3, "log_every": 1, "augment": sl.data.Augment(mixup=0.2)},
        **{"loss": "sigmoid", "head_bias": -2.3},  # set at the very start, and only there
    )
    sl.fit(model, data, recipe, val=val, out=out)


def look(out: Path) -> None:
    import sightline as sl

    model = sl.build("vit-nano4", classes=10, size=16, depth=1)
    images = sl.dataset("scenes/shape", num=8, size=16)
    sl.look(model, images, out, only=["cka", "attention-distance", "feature-pca", "patch-filters", "residual"], n=8)


def report(out: Path) -> None:
    import sightline as sl

    looked = out.parent / "looked"
    if not looked.exists():
        look(looked)
    sl.write_report(looked, out)


def study(out: Path) -> None:
    from tests.attack.small_study import run_here

    run_here(out)


def processes(out: Path) -> None:
    from tests.attack.small_study import run

    run(out)


COMMANDS = {"train": train, "look": look, "report": report, "study": study, "processes": processes}
SHARES = {"train": 0.4, "look": 0.2, "report": 0.05, "study": 0.25, "processes": 0.1}


def child(name: str, out: Path, at: tuple[str, int] | None, counts: str = "") -> None:
    """One attempt in a process of its own; `at` kills it inside a call, and `counts` receives the numbers of calls."""
    import torch

    from tests.attack.faults import Faults

    torch.set_num_threads(1)
    quiet = open(os.devnull, "w")  # noqa: SIM115  (until the child dies)
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), Faults(at, kill=True) as faults:
        COMMANDS[name](out)
    if counts:
        Path(counts).write_text(" ".join(str(faults.calls[kind]) for kind in KINDS))


def attempt(
    name: str,
    out: Path,
    *,
    at: tuple[str, int] | None = None,
    delay: float = 0.0,
    spare: bool = False,
    counts: str = "",
) -> tuple[int, bool]:
    """The exit code of an attempt, and whether a process was killed, inside a call or after a delay; one that is spared
    loses its workers alone, and must go on."""
    process = CONTEXT.Process(target=child, args=(name, out, at, counts))
    process.start()
    process.join(delay or None)
    victims = workers(process.pid) if name == "processes" and process.is_alive() else []
    for worker in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    if process.is_alive() and not spare:
        process.kill()
    process.join()
    return process.exitcode or 0, (process.exitcode or 0) < 0 or bool(victims)


def workers(pid: int | None) -> list[int]:
    """The processes that this one started."""
    with contextlib.suppress(OSError):
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def attack(name: str, root: Path, kills: int) -> dict[str, int]:
    """Kill a command so many times; whenever it survives to its end, compare and begin again."""
    from tests.attack.faults import content

    root.mkdir()
    begun = time.monotonic()
    assert attempt(name, root / "whole", counts=str(root / "counts"))[0] == 0, f"{name} fails by itself"
    length, expected = time.monotonic() - begun, content(root / "whole")
    calls = dict(zip(KINDS, map(int, (root / "counts").read_text().split())))
    order = random.Random(name)
    told = {"kills": 0, "inside a call": 0, "ends": 0, "differ": 0, "fail": 0}
    early_kills = 0 if name == "processes" else min(FIRST, calls["replace"], kills // 2)
    first = [("replace", n) for n in range(early_kills, 0, -1)]  # through the first checkpoint
    out = root / "killed"
    while told["kills"] < kills or out.exists():
        early = bool(first) and not out.exists()
        inside = name != "processes" and (early or order.random() < 0.5)
        spare = name == "processes" and order.random() < 0.4
        kind = order.choice(KINDS)
        at = (kind, order.randint(1, max(1, calls[kind]))) if inside else None
        at = first.pop() if early else at
        enough = told["kills"] >= kills or (bool(first) and not early)  # to its end, undisturbed
        code, killed = attempt(
            name,
            out,
            at=None if enough else at,
            delay=0 if inside or enough else order.uniform(0.1, length),
            spare=spare,
        )
        told["kills"] += killed
        if code < 0:
            told["inside a call"] += inside
            continue
        told["ends"] += 1
        told["fail"] += code > 0
        told["differ"] += code == 0 and content(out) != expected
        shutil.rmtree(out, ignore_errors=True)
    return told


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'':12}" + "".join(f"{word:>16}" for word in ("kills", "inside a call", "ends", "differ", "fail")))
        for name in sys.argv[2:] or COMMANDS:
            told = attack(name, Path(folder) / name, kills if sys.argv[2:] else round(kills * SHARES[name]))
            print(f"{name:12}" + "".join(f"{number:16}" for number in told.values()), flush=True)
            failed |= bool(told["differ"] or told["fail"])
    sys.exit(int(failed))


CONTEXT = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")

if __name__ == "__main__":
    if hasattr(CONTEXT, "set_forkserver_preload"):
        CONTEXT.set_forkserver_preload(
            [
                "torch._dynamo",  # which the first optimizer imports: as long as all of torch before
                "sightline.training.loop",
                "sightline.analysis.catalog",
                "sightline.report.write",
                "tests.attack.small_study",
            ]
        )
    main()
