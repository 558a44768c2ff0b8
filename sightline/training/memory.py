"""Memory before it is taken: what is free, what a step will take, and how many images fit into one pass."""

import math
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sightline.models.checks import pair
from sightline.models.costs import Kept
from sightline.training import checkpoint
from sightline.training.parallel import forget, whole
from sightline.training.train_state import TrainState

# Of the free memory, for passes that are chosen here: a CPU shares it with everything else that runs, and large passes
# are no faster there. A `micro` that was asked for may take all of it.
SHARE = {"cpu": 0.5}
ACCELERATOR_SHARE = 0.8
# A backward pass holds, beside what was kept, gradients and kernels' own copies: so many of the largest tensor.
TRANSIENT = 3
# What an allocator holds for what it was asked for: malloc cannot reuse every gap, least between several passes. These
# numbers, and what a process takes for its first step at all (compiled kernels, buffers of threads), make bounds of
# what was measured: docs/log.md.
SLACK = {"cpu": 1.6}
ACCELERATOR_SLACK = 1.2
SPLIT = 1.4
FIRST_STEP = 64 * 2**20
# Recomputed at one time under checkpointing, as a share of all activations: the first stage of a ResNet-50 is the most.
RECOMPUTED = 0.25
GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a training step takes at its peak, in bytes, beside the process as it is before."""

    fixed: int  # parameters, gradients, optimizer state, average; the batch as images; weights of another form
    image: int  # activations of one image of a pass
    share: int  # images of a batch on one device

    def activations(self, micro: int) -> int:
        """Of a pass of so many images."""
        return int(micro * self.image * (SPLIT if micro < self.share else 1))

    def at(self, micro: int) -> int:
        """All, with passes of so many images."""
        return self.fixed + self.activations(micro)

    def fitting(self, free: float) -> int:
        """The largest pass that fits, of a share halved again and again: the same machine with a little more or less
        memory gives the same answer. One image is the least."""
        micro, passes = self.share, 1
        while micro > 1 and self.at(micro) > free:
            passes *= 2
            micro = math.ceil(self.share / passes)
        return micro


def need(state: TrainState, *, workers: int = 0) -> Need:
    """The peak of a step, from what two tiny forward passes keep. An upper bound: see docs/log.md."""
    recipe, model = state.recipe, state.model
    y, x = pair(model.config.size)
    largest = max([y * x, *(size * size for _, size in recipe.sizes)])
    (first, _), (second, wide) = (_activations(state, images) for images in (1, 2))
    slack = SLACK.get(state.device.type, ACCELERATOR_SLACK)
    image = int(slack * (second - first + TRANSIENT * wide // 2) * largest / (y * x))
    learning = sum(_bytes(p) for p in state.learning)
    values = model.config.channels * largest * recipe.batch // state.world.size
    # float32 of this batch and of the next one, its bytes; a worker has two batches of bytes ahead
    batch = values * (4 + 4 + 1 + 2 * workers)
    # gradients, and a copy of what learns on the steps that log the norm of their update
    held = sum(map(_bytes, checkpoint.tensors_of(state.task, state.optimizer, state.average).values()))
    fixed = FIRST_STEP + held + 2 * learning + max(0, 2 * first - second) + batch
    return Need(fixed=fixed, image=image, share=recipe.batch // state.world.size)


def chosen(need: Need, free: int, device: torch.device, *, asked: int | None) -> int:
    """Images of a pass, as asked for or as many as fit; a refusal where they do not, or where not even one does."""
    best = need.fitting(SHARE.get(device.type, ACCELERATOR_SHARE) * free)
    micro = min(asked or best, need.share)
    if need.at(micro) <= free:
        return micro
    room = f"{free / 2**20:,.0f} MiB are free"
    if need.at(best) <= free:
        raise ValueError(
            f"A step in passes of micro={asked} images takes up to {need.at(micro) / 2**20:,.0f} MiB of memory, and "
            f"{room}: --set micro={best}, or --set micro=none to have it chosen."
        )
    raise ValueError(
        f"Even in passes of one image a step takes up to {need.at(1) / 2**20:,.0f} MiB of memory, "
        f"{need.fixed / 2**20:,.0f} of them for parameters, optimizer and a batch of {need.share:,} images, "
        f"and {room}: --set batch={max(1, need.share // 4)}, a smaller --size, or a smaller model."
    )


def free(device: torch.device, *, here: int = 1) -> int:
    """Bytes that this process can still take on a device, where `here` processes share the machine's memory."""
    match device.type:
        case "cuda":
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return torch.cuda.mem_get_info(device)[0] + cached
        case "mps":
            return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        case _:
            return max(0, min([_machine() // here, *(left // here for left in _groups()), *_limit()]))


def _machine() -> int:
    """What the whole machine has left: by its own word, or half of what is built in."""
    if sys.platform == "win32":
        return _windows()
    try:
        if sys.platform == "darwin":
            return mac_free(subprocess.run(["vm_stat"], capture_output=True, text=True, check=True).stdout)
        return 1024 * int(re.findall(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text())[0])
    except (OSError, subprocess.SubprocessError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def mac_free(text: str) -> int:
    """What macOS's vm_stat says: pages that nobody holds, and those that are given up when asked for."""
    page = int(re.findall(r"page size of (\d+)", text)[0])
    return page * sum(map(int, re.findall(r"Pages (?:free|inactive|speculative|purgeable):\s*(\d+)", text)))


def _windows() -> int:
    import ctypes

    # MEMORYSTATUSEX: two words of 4 bytes (length, load), then seven of 8, the second of which is what is free
    status = (ctypes.c_uint64 * 8)(64)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return status[2]


def _groups(root: Path = GROUP, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What the limits of this process's control groups (containers, jobs) leave it; files that can be dropped from
    memory count as free."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, kinds, name in lines:
        if kinds and "memory" not in kinds.split(","):
            continue
        top, limit, used = (root / "memory", "limit_in_bytes", "usage_in_bytes") if kinds else (root, "max", "current")
        place = top / name.lstrip("/")
        for folder in (place, *place.parents):
            found += _left(folder / f"memory.{limit}", folder / f"memory.{used}")
            if folder == top:
                break
    return found


def _left(limit: Path, used: Path) -> list[int]:
    """One group: nothing where it is not limited, or not there."""
    try:
        dropped = re.findall(r"^inactive_file (\d+)", limit.with_name("memory.stat").read_text(), re.MULTILINE)
        return [int(limit.read_text()) - int(used.read_text()) + sum(map(int, dropped))]
    except (OSError, ValueError):  # "max" is no number
        return []


def _limit() -> list[int]:
    """What `ulimit -v` leaves this process."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return []
    return [] if soft == resource.RLIM_INFINITY else [soft - pages * os.sysconf("SC_PAGE_SIZE")]


def _bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size()


def _activations(state: TrainState, images: int) -> tuple[int, int]:
    """Bytes that autograd keeps of a forward pass, and the largest tensor among them."""
    model = state.model
    kept = _kept(state, images)
    if not model.checkpointing:
        return kept
    model.checkpointing = False
    try:
        whole_pass = _kept(state, images)
    finally:
        model.checkpointing = True
    if state.device.type == "cpu":  # malloc keeps what was freed in pieces: measured, checkpointing saves little
        return whole_pass
    return kept[0] + int(RECOMPUTED * whole_pass[0]), whole_pass[1]


def _kept(state: TrainState, images: int) -> tuple[int, int]:
    c = state.model.config
    blank = torch.zeros(images, c.channels, *pair(c.size), device=state.device)
    labels = torch.zeros(images, dtype=torch.long, device=state.device)
    kept = Kept([whole(p) for p in state.params.values()])
    # a compiled model would be compiled for these two sizes
    eager: Any = torch.compiler.set_stance("force_eager") if state.recipe.compile else nullcontext()
    with eager, saved_tensors_hooks(kept.pack, kept.unpack):
        state.forward(blank, labels, step=0)
    forget(state.task)
    return kept.bytes, kept.largest
