"""Freed memory is kept where that is asked for, goes back afterwards, and the user's own wish counts more."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from sightline.memory import freed_memory_kept, keep_freed_memory

def faults():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytearray(64 * 2**20)[::4096]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))

"""


def numbers(code: str, **around: str) -> list[str]:
    """What a process of its own prints."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}, **around}
    run = [sys.executable, "-c", FAULTS + code]
    return subprocess.run(run, capture_output=True, text=True, env=env, check=True).stdout.split()


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")


def test_freed_memory_is_kept_unless_the_user_has_a_wish():
    assert int(numbers("print(faults())")[0]) > 1000
    kept, count = numbers("print(keep_freed_memory(), faults())")
    assert (kept, int(count) < 200) == ("True", True)
    assert numbers("print(keep_freed_memory())", MALLOC_TOP_PAD_="0") == ["False"]


def test_memory_is_kept_while_open_and_goes_back_afterwards():
    code = """
before = resident()
with freed_memory_kept():
    with freed_memory_kept():
        faults()
    print(faults(), resident() - before)
print(faults(), resident() - before)
"""
    inside, kept, after, left = map(float, numbers(code))
    assert inside < 200  # an inner one that ends changes nothing
    assert kept > 60
    assert after > 1000
    assert left < 10


def test_a_process_that_keeps_its_memory_for_good_still_does_after_an_analysis():
    code = """
keep_freed_memory()
with freed_memory_kept():
    pass
print(faults())
"""
    assert int(numbers(code)[0]) < 200


def test_an_analysis_that_fails_half_way_gives_memory_back():
    code = """
import torch
import sightline as sl
from sightline.memory import _Keepers
from sightline.observe.images import ImageSource
from sightline.observe.model import observe
s = observe(sl.build("vit-nano4", depth=1))
try:
    for made in ImageSource(data=torch.rand(4, 3, 32, 32), batch=2).batches([s]):
        print(_Keepers.count)
        raise ValueError
except ValueError:
    pass
del made
print(_Keepers.count)
"""
    assert numbers(code) == ["1", "0"]
