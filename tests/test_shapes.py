"""The tests' own check of shapes is alive: it wraps what has shapes, and finds a wrong one."""

import jaxtyping
import pytest
import torch

import sightline as sl
from sightline.analysis.similarity.measures import u_center


def test_a_wrong_shape_is_an_error_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError, match="u_center"):
        u_center(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(jaxtyping.TypeCheckError, match="forward"):
        sl.build("vit-nano4", depth=1).blocks[0](torch.zeros(17, 64))


def test_functions_without_shapes_stay_as_they_are():
    assert hasattr(u_center, "__wrapped__")
    assert not hasattr(sl.models.names, "__wrapped__")
