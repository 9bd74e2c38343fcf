"""`VisionCache`: what the vision tower made of images, by their content, least recently used first.

The radix tree keeps the keys and values of an image's tokens, which serves who asks again with the
same words before the image.  This cache keeps what went into them, one step earlier: it serves the
same image after other words, one whose keys and values were evicted, and the later chunks of a
prompt that one step can't hold.

    image --tower, once--> features [num_tokens, hidden] --splice--> a prompt's embeddings
                              |
                              '-- kept while a prompt is inside the image, then while there is room

Like keys and values, features are shared within one namespace only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from minisgl.engine.images import ImageSpan
from minisgl.engine.req import Req
from minisgl.models.pixels import Pixels

Name = tuple[str | None, int]  # of features: the namespace, and the image's content key


class VisionCache:
    """For the engine thread only.

    Args:
        encode: the tower and the projector: images -> the features of each, [num_tokens, hidden].
        max_bytes: of features to keep beyond those that a prompt under way needs; 0: only those.

    Attributes:
        lookups: an image that a request came to in its prefill is one.
        misses: of them, those that the tower ran for; of requests that come to one image together
            only one is.
        bytes: of all features.
    """

    def __init__(
        self, encode: Callable[[Sequence[Pixels]], list[torch.Tensor]], max_bytes: int
    ) -> None:
        self.max_bytes = max_bytes
        self.lookups = self.misses = self.bytes = 0
        self._encode = encode
        self._features: dict[Name, torch.Tensor] = {}  # the last was used last
        self._readers: dict[tuple[Req, Name], int] = {}  # in which image who is, and where it ends

    @property
    def hits(self) -> int:
        """Lookups that cost no run of the tower."""
        return self.lookups - self.misses

    def features(self, wanted: Sequence[tuple[Req, ImageSpan]]) -> list[torch.Tensor]:
        """The features of each image, for the request whose chunk of this step overlaps it.  Those
        that are missing are computed in one batch."""
        names = [(req.params.namespace, span.key) for req, span in wanted]
        new = {
            name: span.pixels
            for name, (_, span) in zip(names, wanted, strict=True)
            if name not in self._features
        }
        if new:
            found = self._encode(list(new.values()))
            for (name, pixels), features in zip(new.items(), found, strict=True):
                assert len(features) == pixels.num_tokens, "a token for each feature"
                self._keep(name, features)
            self.misses += len(new)
        for name, (req, span) in zip(names, wanted, strict=True):
            self._features[name] = self._features.pop(name)
            end = self._readers.get((req, name), 0)
            self.lookups += not end
            self._readers[req, name] = max(end, span.stop)
        return [self._features[name] for name in names]

    def trim(self) -> None:
        """Between steps: forget what is too much."""
        self._trim(self.max_bytes)

    def flush(self) -> None:
        """Between steps: forget all that can be."""
        self._trim(0)

    def _trim(self, max_bytes: int) -> None:
        # subtle: never what a prompt is inside of, or one that is cut in chunks would start anew
        self._readers = {
            (req, name): end
            for (req, name), end in self._readers.items()
            if req.row is not None and req.kv_len < end
        }
        if self.bytes <= max_bytes:
            return
        needed = {name for _, name in self._readers}
        for name in [name for name in self._features if name not in needed]:
            self._forget(name)
            if self.bytes <= max_bytes:
                break

    def drop(self, req: Req) -> None:
        """`req` ended with NaN, so the features of its images are not to be used again."""
        names = {(req.params.namespace, span.key) for span in req.images}
        self._readers = {at: end for at, end in self._readers.items() if at[1] not in names}
        for name in names & self._features.keys():
            self._forget(name)

    def check(self) -> None:
        """AssertionError if bytes are miscounted, or a reader has lost what it reads."""
        assert self.bytes == sum(x.nbytes for x in self._features.values()), "bytes are miscounted"
        needed = {name for _, name in self._readers}
        assert needed <= self._features.keys(), "a prompt is inside an image that was forgotten"
        assert 0 <= self.misses <= self.lookups

    def _keep(self, name: Name, features: torch.Tensor) -> None:
        if features.untyped_storage().nbytes() > features.nbytes:
            features = features.clone()  # a part of the batch would keep all of it alive
        self._features[name] = features
        self.bytes += features.nbytes

    def _forget(self, name: Name) -> None:
        self.bytes -= self._features.pop(name).nbytes
