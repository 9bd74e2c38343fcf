"""Frames of lists, animations and video files: the right ones, and errors in words."""

from __future__ import annotations

import base64
import importlib.util
import io
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.media import Image, Limits, Video, load, load_image, load_video
from minisgl.media.frames import Choice
from minisgl.media.video import is_video_file
from tests.media.common import CAT, PNG, encoded
from tests.toy_videos import animation, avi, greys

needs_decord = pytest.mark.skipif(
    importlib.util.find_spec("decord") is None, reason="decord has no wheel for this machine"
)


def levels(video: Image) -> list[int]:
    """The grey of each frame, to the nearest ten."""
    assert video.is_video
    return [round(frame.getpixel((0, 0))[0], -1) for frame in video.frames]  # type: ignore[index]


LEVELS = list(range(0, 200, 10))
FRAMES = greys(*LEVELS)


class TestFrames:
    """Which ones: the same for every kind of video."""

    def test_all_of_a_list_unless_asked_otherwise(self) -> None:
        array = np.stack([np.asarray(frame) for frame in FRAMES])
        for source in (FRAMES, tuple(FRAMES), array, [encoded(frame) for frame in FRAMES]):
            assert levels(load_video(source)) == LEVELS
            assert levels(load_video(source, num_frames=4)) == [0, 50, 100, 150]
            assert levels(load_video(source, indices=[3, 1, 1])) == [30, 10, 10]
            assert load(Video(source, num_frames=4)).key == load_video(source, num_frames=4).key

    @pytest.mark.parametrize("form", ["WEBP", "PNG", "GIF"])
    def test_a_transparent_frame_is_white(self, form: str) -> None:
        frames = [PIL.Image.new("RGBA", (16, 16), (255, 0, 0, alpha)) for alpha in (0, 255)]
        buffer = io.BytesIO()
        frames[0].save(
            buffer, form, save_all=True, append_images=frames[1:], lossless=True, disposal=2
        )
        video = load_video(buffer.getvalue())
        corners = [np.asarray(frame)[0, 0].tolist() for frame in video.frames]
        assert corners == [[255, 255, 255], [255, 0, 0]]

    @given(count=st.integers(1, 1000), data=st.data())
    def test_evenly_is_evenly(self, count: int, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, count))
        chosen = Choice(num_frames=n).of(count, None)
        gaps = np.diff([*chosen, count])
        assert len(chosen) == n and chosen[0] == 0 and gaps.max() - gaps.min() <= 1

    @given(
        count=st.integers(1, 500),
        fps=st.sampled_from([1, 23.976, 24, 25, 29.97, 30, 60]),
        share=st.floats(0.01, 1.0),
    )
    def test_so_many_a_second(self, count: int, fps: float, share: float) -> None:
        chosen = Choice(fps=fps * share).of(count, fps)
        assert chosen[0] == 0 and chosen[-1] < count
        for k, i in enumerate(chosen):  # frame i is shown from i / fps on
            assert i / fps <= k / (fps * share) + 1e-6 < (i + 1) / fps + 1e-5
        assert Choice(fps=fps).of(count, fps) == list(range(count))

    @pytest.mark.parametrize(
        ("choice", "words"),
        [
            ({"num_frames": 21}, "num_frames=21: the video has only 20"),
            ({"num_frames": 0}, "num_frames=0"),
            ({"num_frames": 2.5}, "num_frames=2.5"),
            ({"indices": [0, 20]}, "index 20 is not among the video's frames [0, 20)"),
            ({"indices": [-1]}, "index -1"),
            ({"indices": []}, "indices are empty"),
            ({"indices": [0, 1.5]}, "indices=(0, 1.5): give whole numbers"),
            ({"fps": "fast"}, "fps='fast'"),
            ({"fps": 0}, "fps=0"),
            ({"fps": float("nan")}, "fps=nan"),
            ({"fps": 1}, "these frames have no rate"),
            ({"fps": 1, "num_frames": 2}, "num_frames and fps are given: give one"),
        ],
    )
    def test_what_can_not_be_chosen(self, choice: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError) as refusal:
            load_video(FRAMES, **choice)
        assert str(refusal.value).startswith("video (20 frames): ") and words in str(refusal.value)

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ([], "the video has no frames"),
            (np.zeros((0, 2, 2, 3)), "the video has no frames"),
            (np.zeros((2, 2, 3)), "[T, H, W, C]"),
            ([CAT, b"GIF"], "image (3 bytes): not a picture"),
            ("no-such.mp4", "no such file"),
            (b"#EXTM3U\nhttp://127.0.0.1/", "not a picture"),  # FFmpeg would fetch it
            (b"ffconcat version 1.0\nfile /etc/passwd", "not a picture"),
            (3, "int is no video"),
            (CAT, "Image is no video"),
            (load(CAT), "Image is no video"),
        ],
    )
    def test_what_is_no_video(self, source: Any, words: str) -> None:
        with pytest.raises(ValueError) as refusal:
            load_video(source)
        assert str(refusal.value).startswith("video ") and words in str(refusal.value)

    def test_a_video_is_no_image(self) -> None:
        for source in (Video(FRAMES), load_video(FRAMES)):
            with pytest.raises(ValueError, match="this is a video, and an image is needed"):
                load_image(source)

    def test_many_large_frames_are_refused_before_they_are_decoded(self) -> None:
        data = animation(FRAMES, "WEBP")
        limits = Limits(max_video_pixels=3 * 32 * 16)
        assert len(load_video(data, num_frames=3, limits=limits).frames) == 3
        with pytest.raises(ValueError, match="4 frames of 32 x 16 are 2048 pixels; at most 1536"):
            load_video(data, num_frames=4, limits=limits)


class TestAnimations:
    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
    def test_without_decord(
        self, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        data = animation(FRAMES, kind, duration=100)  # milliseconds a frame
        path = tmp_path / "loop"
        path.write_bytes(data)
        for source in (data, path, base64.b64encode(data).decode()):
            assert levels(load_video(source)) == [0, 20, 50, 70, 100, 120, 150, 170]
            assert levels(load_video(source, num_frames=20)) == LEVELS
            assert levels(load_video(source, indices=[19, 0, 0])) == [190, 0, 0]
            assert levels(load_video(source, fps=2)) == [0, 50, 100, 150]
        with pytest.raises(ValueError, match="fps=11: the video itself has only 10"):
            load_video(data, fps=11)
        with pytest.raises(ValueError, match=r"broken|not a picture|the video has only"):
            load_video(data[: len(data) // 2], num_frames=20)

    def test_a_still_picture_has_one_frame(self) -> None:
        assert len(load_video(PNG).frames) == 1
        with pytest.raises(ValueError, match="num_frames=2: the video has only 1"):
            load_video(PNG, num_frames=2)


AVI = avi(FRAMES)


class TestVideoFiles:
    def test_by_their_first_bytes(self) -> None:
        assert is_video_file(AVI)
        assert is_video_file(b"\0\0\0\x18ftypisom") and is_video_file(b"\x1aE\xdf\xa3")
        assert is_video_file(b"G" + bytes(187) + b"G")
        for other in (
            PNG,
            animation(FRAMES, "GIF"),
            animation(FRAMES, "WEBP"),
            b"",
            b"Good morning",
        ):
            assert not is_video_file(other)

    @needs_decord
    def test_frames_of_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "talk.avi"
        path.write_bytes(AVI)
        by_name = load(Video(path))
        assert levels(by_name) == [0, 20, 50, 70, 100, 120, 150, 170]
        text = base64.b64encode(AVI).decode()
        assert load(Video(f"data:video/avi;base64,{text}")).key == by_name.key
        assert levels(load_video(AVI, indices=[19, 0, 0])) == [190, 0, 0]
        assert levels(load_video(str(path), fps=2)) == [0, 50, 100, 150]

    @needs_decord
    @pytest.mark.parametrize(
        ("data", "choice", "words"),
        [
            (AVI.replace(b"00dc", b"01dc"), {}, "broken, or cut short"),  # frames of no stream
            (AVI[:100], {}, "broken, or cut short"),
            (AVI, {"num_frames": 21}, "num_frames=21: the video has only 20"),
            (AVI, {"limits": Limits(max_pixels=511)}, "32 x 16 are 512 pixels; at most 511"),
        ],
        ids=["no frames", "cut short", "too many", "too large"],
    )
    def test_errors_of_the_decoder_are_in_words(
        self, data: bytes, choice: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ValueError) as refusal:
            load_video(data, **choice)
        assert str(refusal.value).startswith(f"video ({len(data)} bytes): ")
        assert words in str(refusal.value)

    def test_a_decoder_that_dies_takes_nobody_with_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
        monkeypatch.setattr(sys, "executable", shutil.which("false"))
        with pytest.raises(ValueError, match="its decoder died"):
            load_video(AVI)

    def test_where_decord_has_no_wheel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ValueError, match=r"needs the package decord \(pip install decord\)"):
            load_video(AVI)
        assert load(PNG) and load(Video(FRAMES))
