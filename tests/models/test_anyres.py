"""The anyres geometry against transformers', for images of any size and any pinpoints."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.models.llava_next.modeling_llava_next import (
    get_anyres_image_grid_shape,
    image_size_to_num_patches,
    unpad_image,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

from minisgl.models.anyres import num_image_tokens, num_video_tokens, plan, unpadded

PINPOINTS = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)]
SIDE = 24

sides = st.integers(1, 5000)
# Sizes whose height fills a whole number of the grid's rows: a float may say one less, x.9999999.
whole_rows = st.builds(
    lambda scale, rows, columns: (scale * rows, scale * columns * SIDE),
    st.integers(1, 60), st.integers(1, 72), st.integers(1, 3),
)  # fmt: skip
sizes = st.one_of(
    st.tuples(sides, sides), whole_rows, whole_rows.map(lambda size: (size[1], size[0]))
)
grids = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=8)
pinpoints = st.one_of(
    st.just(PINPOINTS), grids.map(lambda grids: [(336 * r, 336 * c) for r, c in grids])
)


@given(sizes, pinpoints)
def test_the_tiles_are_those_of_transformers(
    size: tuple[int, int], canvases: list[tuple[int, int]]
) -> None:
    ours = plan(size, canvases, tile=336)
    assert ours.canvas == select_best_resolution(size, canvases)
    assert ours.grid == get_anyres_image_grid_shape(size, canvases, 336)
    assert 1 + ours.grid[0] * ours.grid[1] == image_size_to_num_patches(size, canvases, 336)
    image = np.broadcast_to(np.zeros(1), (*size, 3))
    assert ours.resized == get_patch_output_size(image, ours.canvas, "channels_last")


@given(sizes, pinpoints)
def test_image_and_padding_fill_the_canvas(
    size: tuple[int, int], canvases: list[tuple[int, int]]
) -> None:
    ours = plan(size, canvases, tile=336)
    left, top, right, bottom = ours.padding
    assert (top + ours.resized[0] + bottom, left + ours.resized[1] + right) == ours.canvas
    assert 0 <= right - left <= 1
    assert 0 <= bottom - top <= 1


@given(sizes, pinpoints)
def test_the_features_kept_are_those_of_transformers(
    size: tuple[int, int], canvases: list[tuple[int, int]]
) -> None:
    grid = plan(size, canvases, tile=336).grid
    rows, columns = grid[0] * SIDE, grid[1] * SIDE
    numbered = torch.arange(rows * columns).view(1, rows, columns)
    theirs = unpad_image(numbered, size)
    assert torch.equal(numbered[0][unpadded(size, (rows, columns))], theirs[0])


@given(sizes, pinpoints)
def test_tokens_are_counted_as_transformers_counts_them(
    size: tuple[int, int], canvases: list[tuple[int, int]]
) -> None:
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=canvases),
        patch_size=14,
        num_additional_image_tokens=0,
        _get_unpadded_features=lambda *a: LlavaNextProcessor._get_unpadded_features(None, *a),
    )
    theirs = LlavaNextProcessor._get_number_of_features(processor, *size, 336, 336)
    assert num_image_tokens(size, plan(size, canvases, 336).grid, SIDE) == theirs


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((480, 640), 2340),
        ((640, 480), 2352),  # one newline per row, and there are more rows
        ((336, 336), 1176),
        ((19, 500), 674),
        ((1, 1), 1176),
        ((1, 5000), 576),  # nothing of the grid is left
    ],
)
def test_counts_of_the_real_models(size: tuple[int, int], tokens: int) -> None:
    assert num_image_tokens(size, plan(size, PINPOINTS, 336).grid, SIDE) == tokens


def test_a_pinpoint_is_height_and_width() -> None:
    """In a list that is not symmetric the order shows: F9."""
    assert plan((300, 900), [(336, 1008), (672, 672)], 336).grid == (1, 3)
    assert plan((300, 900), [(1008, 336), (672, 672)], 336).grid == (2, 2)


def test_of_equal_canvases_the_first_is_taken() -> None:
    assert plan((336, 336), [(336, 672), (672, 336)], 336).grid == (1, 2)
    assert plan((336, 336), [(672, 336), (336, 672)], 336).grid == (2, 1)


def test_frames_are_pooled_as_a_pool_does() -> None:
    for side in range(2, 9):
        for stride in range(1, side + 1):
            pooled = torch.nn.functional.avg_pool2d(torch.zeros(3, 1, side, side), stride)
            assert num_video_tokens(3, side, stride) == pooled.numel()
