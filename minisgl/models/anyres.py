"""LLaVA-NeXT's "anyres" geometry: which tiles an image of any size becomes, and how many tokens.

One plan, shared by the image processor, which cuts the pixels, and by the model, which joins the
features; so the tokens in the prompt and the features of the tower are counted in one place.

    image 480 x 640              the best pinpoint, 672 x 672           features, 24 a tile's side
    +-----------+    resize      +~~~~~~+~~~~~~+  padding               . . . . . . . .   cut off
    |           |  -------->     | tile | tile |              tower     x x x x x x x x n
    |           |    and pad     +------+------+             ------>    x x x x x x x x n
    +-----------+                | tile | tile |                        x x x x x x x x n
                                 +~~~~~~+~~~~~~+  padding               . . . . . . . .   cut off

    tokens = 24 · 24 of the whole image, shrunk to one tile ("base")
           + rows · columns of the x           what is left of the grid without its padding
           + rows                              n: a learned newline embedding after each row

Sizes are (height, width) everywhere.  The rounding is that of transformers' processors, float by
float where the outcome hangs on it.  Source: Liu et al. 2024, the LLaVA-NeXT (1.6) release notes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class AnyResPlan:
    """How one image is laid on a grid of tiles.  Units: pixels, but for `grid`."""

    grid: Size  # tiles: rows, columns
    canvas: Size  # the pinpoint: grid times the tile's side
    resized: Size  # the image on the canvas, its proportions kept
    padding: tuple[int, int, int, int]  # left, top, right, bottom: an odd pixel goes right, bottom


def plan(size: Size, pinpoints: Sequence[Size], tile: int) -> AnyResPlan:
    """The plan for an image of `size` with square tiles of `tile` pixels.

    >>> plan((480, 640), [(336, 672), (672, 336), (672, 672)], tile=336)
    AnyResPlan(grid=(2, 2), canvas=(672, 672), resized=(504, 672), padding=(0, 84, 0, 84))

    An odd rest, 672 - 509 = 163, still fills the canvas to the pixel:

    >>> plan((1256, 950), [(336, 672), (672, 336), (672, 672)], tile=336)
    AnyResPlan(grid=(2, 2), canvas=(672, 672), resized=(672, 509), padding=(81, 0, 82, 0))
    """
    canvas = best_resolution(size, pinpoints)
    resized = fit(size, canvas)
    (left, odd_x), (top, odd_y) = (
        divmod(canvas[1] - resized[1], 2),
        divmod(canvas[0] - resized[0], 2),
    )
    grid = canvas[0] // tile, canvas[1] // tile
    return AnyResPlan(grid, canvas, resized, (left, top, left + odd_x, top + odd_y))


def best_resolution(size: Size, pinpoints: Sequence[Size]) -> Size:
    """The pinpoint that keeps most of the image's pixels and, of equals, wastes least canvas.

    Of equals in both the first wins: the order of the config's list matters.

    >>> best_resolution((336, 336), [(336, 672), (672, 336)])
    (336, 672)

    Subtle: `int(side * scale)` may lose a pixel to the float, as in 335.99999999999994.  It is
    the processor's own way of choosing, so we lose the same pixel.
    """
    height, width = size

    def score(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[1] / width, canvas[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - canvas[0] * canvas[1]  # the second: minus what is wasted

    return max(pinpoints, key=score)


def fit(size: Size, canvas: Size) -> Size:
    """The largest size of the image's proportions within `canvas`, the shorter side rounded up.

    >>> fit((100, 301), (336, 336))
    (112, 336)

    Subtle: rounding up after a float product may add a pixel to an exact one; the processor does.
    """
    scale_h, scale_w = canvas[0] / size[0], canvas[1] / size[1]
    if scale_w < scale_h:
        return min(math.ceil(size[0] * scale_w), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(size[1] * scale_h), canvas[1])


def unpadded(size: Size, features: Size) -> tuple[slice, slice]:
    """Rows and columns of a grid of `features` that lie on the image and not on its padding.

    The same number is cut from both ends, so an odd rest leaves one row of padding in.

    >>> unpadded((480, 640), (48, 48))
    (slice(6, 42, None), slice(0, 48, None))
    >>> unpadded((1256, 950), (48, 48))
    (slice(0, 48, None), slice(6, 42, None))

    In whole numbers: a float product may land on x.9999999 and lose a row that the tower made.
    transformers rounds it to 7 digits first, which for any image gives the same.

    >>> 49 * (48 / 49), 49 * 48 // 49
    (48.0, 48)
    """
    height, width = size
    rows, columns = features
    if width * rows > columns * height:  # wider than the grid: padded above and below
        cut = (rows - height * columns // width) // 2
        return slice(cut, rows - cut), slice(0, columns)
    cut = (columns - width * rows // height) // 2
    return slice(0, rows), slice(cut, columns - cut)


def num_image_tokens(size: Size, grid: Size, side: int) -> int:
    """Tokens of an image of `size` pixels on `grid` tiles of `side` x `side` features each.

    >>> num_image_tokens((480, 640), (2, 2), side=24), num_image_tokens((640, 480), (2, 2), side=24)
    (2340, 2352)
    >>> num_image_tokens((336, 336), (1, 2), side=24)
    1176

    Of an image far thinner than a feature no row is left, and only the base has tokens:

    >>> num_image_tokens((1, 1000), (1, 3), side=24)
    576
    """
    rows, columns = unpadded(size, (grid[0] * side, grid[1] * side))
    height: int = rows.stop - rows.start
    width: int = columns.stop - columns.start
    return side * side + height * (width + 1)


def num_video_tokens(num_frames: int, side: int, stride: int) -> int:
    """Tokens of a video: each frame's `side` x `side` features, pooled `stride` x `stride` to one.

    >>> num_video_tokens(8, side=24, stride=2)
    1152

    A pool window that the last row or column doesn't fill gives no feature:

    >>> num_video_tokens(1, side=5, stride=2)
    4
    """
    return num_frames * (side // stride) ** 2
