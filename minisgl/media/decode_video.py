"""The program that decodes video files: `python -m minisgl.media.decode_video`, one video a run.

decord's decoders are C code that aborts the whole process on some broken files.  In a process of
its own that costs one video, and not the engine and everybody's requests with it.

    stdin     {"path": ..., "choice": {"num_frames": 8, ...}, "max_pixels": ..., ...}      JSON
    stdout    {"frames": 8, "height": 360, "width": 640}, or {"error": "..."}       a line of JSON
              then the frames, RGB, 8 bits a channel                                the bytes
"""

from __future__ import annotations

import json
import sys
from typing import Any

from minisgl.media.frames import DEFAULT_NUM_FRAMES, Choice, check_pixels


def decode(
    path: str, choice: dict[str, Any], max_pixels: int, max_video_pixels: int
) -> tuple[dict[str, Any], bytes]:
    """What goes to stdout."""
    import decord

    decord.logging.set_level(decord.logging.QUIET)  # what is wrong is raised as well
    video = decord.VideoReader(path)
    count = len(video)
    indices = Choice(**choice).of(count, video.get_avg_fps() if count else None, DEFAULT_NUM_FRAMES)
    height, width, _ = video[indices[0]].shape
    check_pixels(1, height, width, max_pixels)
    check_pixels(len(indices), height, width, max_video_pixels)
    frames = video.get_batch(indices).asnumpy()  # [frames, H, W, 3] uint8
    return {"frames": len(indices), "height": height, "width": width}, frames.tobytes()


def main() -> None:
    """One video."""
    frames = b""
    try:
        head, frames = decode(**json.load(sys.stdin))
    except ValueError as error:
        head = {"error": str(error)}
    except Exception as error:  # decord raises RuntimeError, its own errors and IndexError
        head = {"error": f"broken, or cut short: {str(error).strip()[-80:]}"}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + frames)


if __name__ == "__main__":
    main()
