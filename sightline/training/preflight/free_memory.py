"""How much memory is free: of an accelerator, the machine, its control group, `ulimit -v`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from sightline.training.system import address_space_limit

CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device, *, processes: int = 1) -> int:
    """Memory that this process can still take on a device, if this many processes share the machine's memory."""
    match device.type:
        case "cuda":
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return torch.cuda.mem_get_info(device)[0] + cached
        case "mps":
            return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        case _:
            return max(0, min([_machine() // processes, *(b // processes for b in cgroup_free()), *_address_space()]))


def _machine() -> int:
    """Available memory of the machine, or half of what is installed where the system does not say."""
    if sys.platform == "win32":
        return _windows()
    try:
        if sys.platform == "darwin":
            return parse_vm_stat(subprocess.run(["vm_stat"], capture_output=True, text=True, check=True).stdout)
        return 1024 * int(re.findall(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))[0])
    except (OSError, subprocess.SubprocessError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def parse_vm_stat(text: str) -> int:
    """Free memory by macOS's vm_stat: free pages, and those that the system gives up on demand."""
    page = int(re.findall(r"page size of (\d+)", text)[0])
    return page * sum(map(int, re.findall(r"Pages (?:free|inactive|speculative|purgeable):\s*(\d+)", text)))


def _windows() -> int:
    import ctypes

    # MEMORYSTATUSEX: two fields of 4 bytes (length, load), then seven of 8; the second of these is the free memory
    status = (ctypes.c_uint64 * 8)(64)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return status[2]


def cgroup_free(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What the limits of this process's control groups (containers, jobs) leave; cached files count as free."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, name in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        top, limit, used = (
            (root / "memory", "limit_in_bytes", "usage_in_bytes") if controllers else (root, "max", "current")
        )
        own_group = top / name.lstrip("/")
        for folder in (own_group, *own_group.parents):
            found += _remaining(folder / f"memory.{limit}", folder / f"memory.{used}")
            if folder == top:
                break
    return found


def _remaining(limit: Path, used: Path) -> list[int]:
    """What one group leaves; empty where it has no limit, or does not exist."""
    try:
        cached = re.findall(
            r"^inactive_file (\d+)", limit.with_name("memory.stat").read_text(encoding="utf-8"), re.MULTILINE
        )
        return [int(limit.read_text(encoding="utf-8")) - int(used.read_text(encoding="utf-8")) + sum(map(int, cached))]
    except (OSError, ValueError):  # "max" means no limit
        return []


def _address_space() -> list[int]:
    """What `ulimit -v` leaves this process; empty where it has no limit."""
    limit = address_space_limit()
    if limit is None:
        return []
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    except OSError:
        return []
    return [limit - pages * os.sysconf("SC_PAGE_SIZE")]
