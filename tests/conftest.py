"""Settings that every test shares."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("house")
os.environ.setdefault("COLUMNS", "160")


@pytest.fixture(autouse=True)
def _steady():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the suite runs one process per core
