"""Images and videos in any form that people have them, as RGB pixels with a key of their content.

    load_image("cat.jpg") == load_image(open("cat.jpg", "rb").read())      True: the same pixels

    source            path, bytes, PIL, numpy, base64, data:, http(s)           load.py
      -> its bytes    read, decoded or fetched, within `Limits`                source.py, fetch.py
      -> RGB          upright, on white, 8 bits a channel                      rgb.py
      -> frames       of a video: which ones, and out of which decoder         frames.py, video.py,
                                                                               decode_video.py
      -> `Image`      the frames and their key

What can't be used is a `ValueError` that says why.  Nothing here knows a model: what a vision tower
takes, `models/image_processor.py` makes of these pixels.
"""

from __future__ import annotations

from minisgl.media.limits import Limits
from minisgl.media.load import Image, Video, load, load_image, load_video

__all__ = ["Image", "Limits", "Video", "load", "load_image", "load_video"]
