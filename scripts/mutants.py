"""Do the tests of minisgl/cache bite? Break the code one line at a time and see if they notice.

    python scripts/mutants.py

Each mutant is a copy of the cache with one change, tested in a temporary directory. The script
prints a line for each, and exits with 1 if a mutant survives or if the unchanged code fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TREE, NODE, POOL, TABLE = "radix_cache.py", "tree_node.py", "kv_pool.py", "req_to_token.py"


class Mutant(NamedTuple):
    """One change: in `file`, the only occurrence of `old` becomes `new`."""

    what: str
    file: str
    old: str
    new: str


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
]


def tests_pass(mutant: Mutant | None) -> bool:
    """Run the cache's tests on a copy of the code with `mutant` in it."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for part in ("minisgl", "scripts", "tests/cache"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(ROOT / part, copy / part)
        if mutant is not None:
            path = copy / "minisgl" / "cache" / mutant.file
            source = path.read_text(encoding="utf-8")
            if source.count(mutant.old) != 1:
                raise ValueError(
                    f"{mutant.file} has {source.count(mutant.old)} times {mutant.old!r}"
                )
            path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        tests = [
            f"tests/cache/test_{name}.py"
            for name in ("radix_cache", "radix_model", "kv_pool", "req_to_token")
        ]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        result = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        if result.returncode not in (
            0,
            1,
        ):  # 0: all passed; 1: some failed; else: pytest itself did
            raise RuntimeError(result.stdout + result.stderr)
        return result.returncode == 0


def main() -> int:
    if not tests_pass(None):
        print("the tests fail on the code as it is: no mutant can tell anything")
        return 1
    survivors = 0
    for mutant in MUTANTS:
        survives = tests_pass(mutant)
        survivors += survives
        print(
            f"{'SURVIVES' if survives else 'killed  '}  {mutant.file:16} {mutant.what}", flush=True
        )
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
