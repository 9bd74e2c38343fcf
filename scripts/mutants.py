"""Do the tests bite? Break the code one line at a time and see if they notice.

    python scripts/mutants.py              # the cache, Mixtral's and LLaVA's kernels and models
    python scripts/mutants.py --room kernels

Each mutant is a copy of the code with one change, tested in a temporary directory. The script
prints a line for each, and exits with 1 if a mutant survives or if the unchanged code fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TREE, NODE = "cache/radix_cache.py", "cache/tree_node.py"
TABLE_CACHE = "cache/table_cache.py"
POOL, TABLE = "cache/kv_pool.py", "cache/req_to_token.py"
ROUTE, SORT, MOE = "kernels/moe_route.py", "kernels/moe_sort.py", "kernels/moe.py"
MIXTRAL = "models/mixtral.py"
LAYER_NORM, GELU = "kernels/layer_norm.py", "kernels/gelu.py"
POOL_GRID = "kernels/pool_grid.py"
ANYRES, CLIP = "models/anyres.py", "models/clip.py"
LLAVA, LAYOUTS = "models/llava.py", "models/llava_layouts.py"

SUITES = {  # how a mutant's file begins -> its tests, in tests/ and the room; kernels interpreted
    "cache/": [
        "test_radix_cache.py", "test_radix_model.py", "test_table_cache.py", "test_kv_pool.py",
        "test_req_to_token.py",
    ],
    "kernels/moe": ["test_moe.py"],
    "kernels/": ["test_layer_norm.py", "test_gelu.py", "test_pool_grid.py"],
    "models/mixtral": ["test_mixtral.py"],
    "models/anyres": ["test_anyres.py"],
    "models/": ["test_clip.py", "test_llava.py", "test_llava_layouts.py"],
}  # fmt: skip
ROOMS = ("cache", "kernels", "models")


class Mutant(NamedTuple):
    """One change: in `file`, the only occurrence of `old` becomes `new`."""

    what: str
    file: str  # in minisgl/
    old: str
    new: str

    @property
    def suite(self) -> str:
        return next(suite for suite in SUITES if self.file.startswith(suite))


MUTANTS = [
    Mutant(
        "a split forgets the locks of the upper half",
        TREE,
        "upper.ref_count, upper.last_used = node.ref_count, node.last_used",
        "upper.last_used = node.last_used",
    ),
    Mutant("eviction ignores locks", NODE, " and self.ref_count == 0", ""),
    Mutant(
        "a match inside a node does not split it",
        TREE,
        "if same < len(node.key):",
        "if same < 0:",
    ),
    Mutant(
        "eviction forgets to count",
        TREE,
        "self.evictable_size -= len(leaf.key)",
        "self.evictable_size -= 0",
    ),
    Mutant(
        "a parent is not queued when its last child goes",
        TREE,
        "self._enqueue(parent)",
        "self._enqueue(leaf)",
    ),
    Mutant(
        "a leaf is not queued when its last lock goes",
        TREE,
        "        self._enqueue(node)\n\n    # --",
        "\n    # --",
    ),
    Mutant(
        "eviction takes the oldest entry, not the least recently used leaf",
        TREE,
        "if queued_at < leaf.last_used:",
        "if queued_at < 0:",
    ),
    Mutant(
        "a match does not count as a use",
        TREE,
        "step.last_used = self._clock",
        "step.last_used += 0",
    ),
    Mutant(
        "a look into one namespace finds another",
        TREE,
        "children.get((namespace, tokens[matched]))",
        "children.get((None, tokens[matched]))",
    ),
    Mutant(
        "a leaf gets the first slots instead of the last",
        TREE,
        "list(slots[cached:])",
        "list(slots[: len(slots) - cached])",
    ),
    Mutant(
        "eviction stops one token short",
        TREE,
        "while len(freed) < num_tokens",
        "while len(freed) + 1 < num_tokens",
    ),
    Mutant(
        "a common prefix may be longer than the key",
        NODE,
        "return min(same, limit)",
        "return same",
    ),
    Mutant(
        "an evicted node may be locked",
        TREE,
        "leaf.parent = None",
        "leaf.ref_count = 0",
    ),
    Mutant(
        "what is appended is not locked", TREE, "leaf.ref_count = 1  #", "leaf.ref_count = 0  #"
    ),
    Mutant(
        "what is appended replaces what is known",
        TREE,
        "if leaf.edge in node.children:",
        "if leaf.edge in ():",
    ),
    Mutant(
        "a walk below a node starts at the root",
        TREE,
        "node, same, matched = start, len(start.key), 0",
        "node, same, matched = self.root, 0, 0",
    ),
    Mutant("a drop goes past a lock", TREE, "while node.evictable:", "while not node.children:"),
    Mutant(
        "what was dropped stays in the queue",
        TREE,
        "if entry[2].parent is not None]",
        "if entry[2].parent is not node]",
    ),
    Mutant(
        "a table ends at the first entry", TABLE_CACHE, "if matched > longest:", "if not longest:"
    ),
    Mutant(
        "entries of another namespace count",
        TABLE_CACHE,
        "if child.namespace == namespace",
        "if child",
    ),
    Mutant(
        "a slot is handed out twice", POOL, "self._used[taken] = True", "self._used[taken] |= False"
    ),
    Mutant(
        "a scan hands out what is in use",
        POOL,
        "np.flatnonzero(~self._used)",
        "np.arange(self.num_slots)",
    ),
    Mutant(
        "a freed row is lost", TABLE, "heapq.heappush(self._free, row)", "heapq.heapify(self._free)"
    ),
    Mutant("of equal experts the last wins", ROUTE, "e[None, :] < e[:", "e[None, :] > e[:"),
    Mutant("a NaN is the best of all", ROUTE, "tl.where(p == p, p, 0.0)", "p"),
    Mutant("weights do not sum to 1", ROUTE, "p / total, mask", "p, mask"),
    Mutant("a lane that is no expert counts", ROUTE, 'logits, -float("inf"))', "logits, 0.0)"),
    Mutant("the rest of D is dropped", ROUTE, "range(0, D, BLOCK_D)", "range(0, D - 7, BLOCK_D)"),
    Mutant("padding names a pair", SORT, "tl.zeros([BLOCK], tl.int32) + N", "padding * 0"),
    Mutant("idle tiles are not marked", SORT, "tl.where(me == E - 1, most, end)", "end"),
    Mutant(
        "each chunk begins anew", SORT, "placed += tl.sum(is_mine", "placed += 0 * tl.sum(is_mine"
    ),
    Mutant("tiles overlap", SORT, "size = (count + BLOCK - 1) // BLOCK", "size = count // BLOCK"),
    Mutant("more tiles than can be", SORT, "num_experts * (block - 1)", "num_experts * block"),
    Mutant("up is gate", MOE, "(expert * 2 * I + I + i)", "(expert * 2 * I + i)"),
    Mutant("a pair reads another token", MOE, "(p // K)[:, None]", "(p % (N // K))[:, None]"),
    Mutant("padding is stored", MOE, "    mask = (p < N)[:, None] & (i < I)", "    mask = (i < I)"),
    Mutant("the router's weights do not count", MOE, "y += weight * tl", "y += tl"),
    Mutant("w1 is up", MIXTRAL, "WeightSlot(gate,", "WeightSlot(up,"),
    Mutant(
        "a stack's halves are swapped",
        MIXTRAL,
        "in rows.items()",
        "in zip(rows, [*rows.values()][::-1])",
    ),
    Mutant("down is cut along its rows", MIXTRAL, "WeightSlot(down, 1,", "WeightSlot(down, 0,"),
    Mutant(
        "lanes past D are deviations",
        LAYER_NORM,
        "tl.where(d < D, x - mean[:, None], 0.0)",
        "x - mean[:, None]",
    ),
    Mutant("the mean stays in", LAYER_NORM, "x - mean[:, None], 0.0)", "x, 0.0)"),
    Mutant("the shift is dropped", LAYER_NORM, "[:, None] * w + b", "[:, None] * w"),
    Mutant("quick is exact and exact quick", GELU, "if QUICK:", "if not QUICK:"),
    Mutant("quick is SiLU", GELU, "tl.sigmoid(1.702 * x)", "tl.sigmoid(x)"),
    Mutant("erf of z, not of z / √2", GELU, "tl.erf(x * 0.7071067811865476)", "tl.erf(x)"),
    Mutant("every frame is the first", POOL_GRID, "frame * stride_xf", "0 * stride_xf"),
    Mutant("a row goes on in the next", POOL_GRID, "n // out % out * STRIDE", "n // out * STRIDE"),
    Mutant("no maximum is negative", POOL_GRID, 'float("-inf")', "0.0"),
    Mutant("wasted canvas does not count", ANYRES, "kept - canvas[0] * canvas[1]", "0"),
    Mutant("an image may grow", ANYRES, ", width * height)", ", 10**12)"),
    Mutant("a side is rounded down", ANYRES, "math.ceil(size[0] *", "int(size[0] *"),
    Mutant("odd padding is lost", ANYRES, "left + odd_x", "left"),
    Mutant("the other side is cut", ANYRES, "width * rows > columns", "width * rows < columns"),
    Mutant("a row has no newline", ANYRES, "height * (width + 1)", "height * width"),
    Mutant(
        "the class token is last",
        CLIP,
        "[self.class_token.expand(N, 1, -1), x]",
        "[x, self.class_token.expand(N, 1, -1)]",
    ),
    Mutant("a patch sees those before it", CLIP, "causal=False", "causal=True"),
    Mutant("patches go column by column", CLIP, "(0, 2, 4, 1, 3, 5)", "(0, 4, 2, 1, 3, 5)"),
    Mutant(
        "a state lacks its last block's MLP",
        CLIP,
        "states[i + 1] = x + residual",
        "states[i + 1] = residual",
    ),
    Mutant("every GELU is quick", CLIP, 'c.hidden_act == "quick_gelu"', "True"),
    Mutant("a needless layer is asked for", CLIP, "len(self.layers) <= int", "99 <= int"),
    Mutant("tiles lie one below the other", LLAVA, "split.transpose(1, 2)", "split"),
    Mutant("a newline begins a row", LLAVA, "[kept, newlines]", "[newlines, kept]"),
    Mutant(
        "the base comes last",
        LLAVA,
        "[tiles[0], lines.flatten(0, 1)]",
        "[lines.flatten(0, 1), tiles[0]]",
    ),
    Mutant(
        "the padding stays",
        LLAVA,
        "features[unpadded(size, (rows * side, columns * side))]",
        "features",
    ),
    Mutant("the class token stays", LLAVA, '== "default" else 0', '== "full" else 0'),
    Mutant("one pass is all", LLAVA, "tiles.split(MAX_TILES)", "tiles.split(MAX_TILES)[:1]"),
    Mutant("a window is read sideways", LLAVA, "(0, 1, 3, 5, 2, 4)", "(0, 1, 3, 5, 4, 2)"),
    Mutant(
        "a GELU before the first layer",
        LLAVA,
        "x = self.layers[0](x)",
        "x = self.layers[0](gelu(x, quick=False))",
    ),
    Mutant("the authors' pinpoints as they stand", LAYOUTS, "((h, w) for w", "((w, h) for w"),
    Mutant(
        "layer -1 is the last but one",
        LAYOUTS,
        "n + vision.num_layers + 1 if",
        "n + vision.num_layers if",
    ),
    Mutant(
        "a tower inside is not seen",
        LAYOUTS,
        'return vision, "" if inside else home',
        "return vision, home",
    ),
]


def tests_pass(suite: str, mutant: Mutant | None) -> bool:
    """Run the tests of a suite on a copy of the code with `mutant` in it."""
    room = suite.split("/")[0]
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for part in ("minisgl", "scripts", f"tests/{room}"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(ROOT / part, copy / part)
        if mutant is not None:
            path = copy / "minisgl" / mutant.file
            source = path.read_text(encoding="utf-8")
            if source.count(mutant.old) != 1:
                raise ValueError(
                    f"{mutant.file} has {source.count(mutant.old)} times {mutant.old!r}"
                )
            path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        tests = [f"tests/{room}/{name}" for name in SUITES[suite]]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        env = os.environ | ({"TRITON_INTERPRET": "1"} if room == "kernels" else {})
        result = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, check=False
        )
        if result.returncode not in (
            0,
            1,
        ):  # 0: all passed; 1: some failed; else: pytest itself did
            raise RuntimeError(result.stdout + result.stderr)
        return result.returncode == 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--room", nargs="+", choices=ROOMS, default=[*ROOMS])
    rooms = parser.parse_args(arguments).room
    tried = [mutant for mutant in MUTANTS if mutant.file.startswith(tuple(rooms))]
    for suite in dict.fromkeys(mutant.suite for mutant in tried):
        if not tests_pass(suite, None):
            print(f"the tests of {suite} fail on the code as it is: no mutant can tell anything")
            return 1
    survivors = 0
    for mutant in tried:
        survives = tests_pass(mutant.suite, mutant)
        survivors += survives
        print(
            f"{'SURVIVES' if survives else 'killed  '}  {mutant.file:24} {mutant.what}", flush=True
        )
    print(f"{len(tried) - survivors} of {len(tried)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
