"""Symmetries of layers and models."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sightline as sl


def image(size=24):
    return torch.rand(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@given(down=st.integers(-3, 3), right=st.integers(-3, 3))
def test_convolution_is_equivariant_away_from_borders(down, right):
    conv = nn.Conv2d(3, 4, 5, padding=2).double()
    assert sl.analysis.equivariance_error(conv, image(), shift=(down, right), border=2) < 1e-12


def test_the_border_shows_padding():
    conv = nn.Conv2d(3, 4, 5, padding=2).double()
    assert sl.analysis.equivariance_error(conv, image(), shift=(2, 2), border=0) > 1e-3


def test_a_strided_map_is_equivariant_by_its_stride():
    conv = nn.Conv2d(3, 4, 4, stride=4).double()
    assert sl.analysis.equivariance_error(conv, image(), shift=(4, 8)) < 1e-12
    with pytest.raises(ValueError, match="stride 4 x 4"):
        sl.analysis.equivariance_error(conv, image(), shift=(1, 0))


def test_a_map_that_knows_where_it_is_is_not_equivariant():
    ramp = torch.linspace(0, 1, 24, dtype=torch.float64)
    assert sl.analysis.equivariance_error(lambda x: x * ramp, image(), shift=(0, 3)) > 0.05


def test_pooling_is_partly_invariant_and_convolution_is_not():
    pool, conv = nn.MaxPool2d(4), nn.Conv2d(3, 3, 3, padding=1).double()
    assert 0.5 < sl.analysis.unchanged_fraction(pool, image(), shift=(0, 1)) < 1
    assert sl.analysis.unchanged_fraction(conv, image(), shift=(0, 1)) < 0.01
    assert sl.analysis.unchanged_fraction(pool, image(), shift=(0, 0)) == 1


def test_equivariance_and_invariance_are_different_things():
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular").double()
    assert sl.analysis.equivariance_error(conv, image(), shift=(1, 2)) < 1e-12
    assert sl.analysis.invariance_error(conv, image(), shift=(1, 2)) > 0.1
    assert sl.analysis.invariance_error(lambda x: conv(x).mean((2, 3)), image(), shift=(1, 2)) < 1e-12


def test_token_maps():
    z = torch.randn(2, 7, 6, dtype=torch.float64)
    place = torch.randn(7, 6, dtype=torch.float64)
    assert sl.analysis.permutation_error(lambda t: sl.models.basic_self_attention(t)[0], z) < 1e-12
    assert sl.analysis.permutation_error(lambda t: sl.models.basic_self_attention(t + place)[0], z) > 0.1
    jacobian = sl.analysis.token_jacobian(lambda t: sl.models.basic_self_attention(t)[0], z[0])
    assert jacobian.shape == (7, 7)
    assert jacobian.gt(0).all()


def test_a_function_without_maps_or_room_is_refused():
    with pytest.raises(ValueError, match="maps"):
        sl.analysis.equivariance_error(lambda x: x.mean((2, 3)), image())
    with pytest.raises(ValueError, match="Nothing is left"):
        sl.analysis.equivariance_error(lambda x: x, image(), shift=(1, 1), border=12)


def test_permuted_patches_are_the_same_patches():
    x = image()
    moved, order = sl.analysis.permute_patches(x, (4, 6), seed=3)
    patches = [p.unfold(2, 4, 4).unfold(3, 6, 6).permute(0, 2, 3, 1, 4, 5).flatten(1, 2) for p in (x, moved)]
    assert torch.equal(patches[1], patches[0][:, order])
