"""`Choice`: which frames of a video are looked at."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

DEFAULT_NUM_FRAMES = 8  # of a video file, where nothing else is asked for
TINY = 1e-6  # of a frame: more than floats are wrong by


@dataclass(frozen=True)
class Choice:
    """How to choose; at most one of the three.

    Args:
        num_frames: so many, evenly from the first on.
        fps: so many a second.
        indices: these, in this order.

    Raises:
        ValueError: more than one of them, or values that can't be.
    """

    num_frames: int | None = None
    fps: float | None = None
    indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given: give one of them")
        n = self.num_frames
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise ValueError(f"num_frames={n!r}: give a whole number of at least 1")
        fps = self.fps
        if fps is not None and not (isinstance(fps, (int, float)) and 0 < fps < math.inf):
            raise ValueError(f"fps={fps!r}: give frames per second above 0")
        if self.indices is not None:
            try:
                indices = tuple(map(operator.index, self.indices))
            except TypeError as error:
                raise ValueError(f"indices={self.indices!r}: give whole numbers") from error
            if not indices:
                raise ValueError("indices are empty: give at least one")
            object.__setattr__(self, "indices", indices)

    def of(self, count: int, fps: float | None, default: int | None = None) -> list[int]:
        """The indices, of a video of `count` frames, `fps` a second.

        default: how many where nothing is asked for; None: all.

        >>> Choice(num_frames=4).of(10, None), Choice(fps=1).of(10, 2.5), Choice().of(3, None)
        ([0, 2, 5, 7], [0, 2, 5, 7], [0, 1, 2])

        Raises:
            ValueError: the video has no frames, or not the ones that are asked for.
        """
        if count < 1:
            raise ValueError("the video has no frames")
        if self.indices is not None:
            for i in self.indices:
                if not 0 <= i < count:
                    raise ValueError(f"index {i} is not among the video's frames [0, {count})")
            return list(self.indices)
        if self.fps is not None:
            if not fps:
                raise ValueError(f"fps={self.fps:g}: these frames have no rate; give num_frames")
            if self.fps > fps:
                raise ValueError(f"fps={self.fps:g}: the video itself has only {fps:g}")
            step = fps / self.fps
            wanted = max(1, math.ceil(count / step - TINY))
            return [int(k * step + TINY) for k in range(wanted)]
        n = self.num_frames or min(count, default or count)
        if n > count:
            raise ValueError(f"num_frames={n}: the video has only {count}")
        return [k * count // n for k in range(n)]


def check_pixels(frames: int, height: int, width: int, most: int) -> None:
    """ValueError if so many frames of this size are more than `most` pixels."""
    if frames * height * width > most:
        raise ValueError(
            f"{frames} frames of {width} x {height} are {frames * height * width} pixels; at most "
            f"{most} are allowed: take fewer frames"
        )
