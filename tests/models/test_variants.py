"""Names, parameter counts and token counts (paper-facts 2.11 and 3.1; E2, E3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl

COUNTS = {
    "vit-ti16": 5_717_416,
    "vit-s32": 22_878_952,
    "vit-s16": 22_050_664,
    "vit-b32": 88_224_232,
    "vit-b16": 86_567_656,
    "vit-b8": 86_576_872,
    "vit-l32": 306_535_400,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
    "r-vit-ti16": 6_337_704,
    "r26-vit-s32": 36_431_912,
    "r26-vit-b32": 101_383_976,
    "r50-vit-b16": 98_659_112,
    "r50-vit-l32": 328_994_856,
    "r50-vit-b32": 110_945_832,
    "r50-vit-l16": 316_483_624,
    "bit-r50x1": 25_549_352,
    "bit-r50x3": 217_319_080,
    "bit-r101x1": 44_541_480,
    "bit-r101x3": 387_934_888,
    "bit-r152x2": 236_335_208,
    "bit-r152x4": 936_533_224,
    "mixer-b16": 59_880_472,
    "mixer-b32": 60_293_428,
    "mixer-l16": 208_196_168,
}
GAP_COUNTS = {"vit-b16": 86_566_120, "vit-b32": 88_222_696, "vit-s16": 22_049_896, "vit-s32": 22_878_184}


def parameters(name, **changes):
    return sum(p.numel() for p in sl.build(name, device="meta", **changes).parameters())


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameter_counts_are_the_published_ones(name, count):
    assert parameters(name) == count


@pytest.mark.parametrize(("name", "count"), GAP_COUNTS.items())
def test_gap_models_have_no_class_token(name, count):
    assert parameters(name, pool="gap") == count


def test_backbones_and_headless_models():
    def backbone(name):
        return sum(p.numel() for p in sl.build(name, device="meta").backbone.parameters())

    assert backbone("r50-vit-b16") == 11_894_848
    assert backbone("r50-vit-l32") == 23_508_032
    assert parameters("bit-r152x4", classes=0) == 928_340_224  # the paper's "928 million"


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("vit-b16", 224, 197),
        ("vit-b32", 224, 50),
        ("vit-h14", 224, 257),
        ("vit-b16", 384, 577),
        ("vit-b32", 384, 145),
        ("vit-l16", 512, 1025),
        ("vit-h14", 518, 1370),
        ("r-vit-ti16", 224, 50),
    ],
)
def test_token_counts(name, size, tokens):
    assert sl.build(name, size=size, device="meta").encoder_config.tokens == tokens


def test_the_two_sequence_lengths_of_the_hybrid():
    short, long = sl.models.config("r50-vit-b32"), sl.models.config("r50-vit-b16")
    assert (short.grid, long.grid) == ((7, 7), (14, 14))
    assert sum(short.units) == sum(long.units)


@pytest.mark.parametrize(
    ("paper", "ours"),
    [
        ("ViT-L/16", "vit-l16"),
        ("VIT_B_16", "vit-b16"),
        ("ViT-H/14", "vit-h14"),
        ("R50+ViT-B/16", "r50-vit-b16"),
        ("R26+ViT-S_32", "r26-vit-s32"),
        ("R+ViT-Ti/16", "r-vit-ti16"),
        ("BiT-R152x4", "bit-r152x4"),
    ],
)
def test_paper_spellings(paper, ours):
    assert sl.models.config(paper) == sl.models.config(ours)


def test_only_g_depends_on_case():
    assert sl.models.config("ViT-g/14").width == 1408
    assert sl.models.config("ViT-G/14").width == 1664
    assert sl.models.config("VIT-B/16") == sl.models.config("vit-b16")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("vit-b", "vit-b"), ("vitb16", "vit-b16"), ("bit-r51x1", "bit-r50x1"), ("r50-vit-b17", "r50-vit-b1")],
)
def test_an_unknown_name_suggests_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=right):
        sl.build(wrong)


def test_an_unknown_field_suggests_the_nearest():
    with pytest.raises(ValueError, match="classes"):
        sl.build("vit-nano4", clases=3)
    with pytest.raises(ValueError, match="classes"):
        sl.build(sl.models.config("bit-nano"), clases=3)


@given(
    patch=st.integers(1, 64),
    letter=st.sampled_from(["ti", "s", "b", "l", "h", "g", "G"]),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_any_patch_and_any_grid(patch, letter, grid):
    made = sl.models.config(f"vit-{letter}{patch}", size=(grid[0] * patch, grid[1] * patch))
    assert made.grid == grid
    assert made.tokens == 1 + grid[0] * grid[1]


@pytest.mark.parametrize("name", sl.models.names())
def test_every_listed_name_builds(name):
    assert sl.build(name, device="meta").config == sl.models.config(name)


def test_any_width_of_bit():
    assert sl.models.config("bit-r50x2").width == 4096
    assert sl.models.config("bit-r101x0.5").width == 1024
