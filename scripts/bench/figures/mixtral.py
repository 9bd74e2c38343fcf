"""Figure 7: throughput of the workloads of figure 5 on Mixtral-8x7B, a mixture of experts.

The paper runs it on eight GPUs with tensor parallelism and finds the gains of figure 5 again.  Here
a model of Mixtral-8x7B's shape with random weights runs them, scaled or in its real size with
`--real-shapes` (over as many GPUs as it needs), or `--model`:

    ours            radix cache, cache-aware scheduling, branches in parallel, hints, jump-forward
    ours, all off   the same engine and language without any of these

and the peers that are asked for; of a scaled model they get the same weights.  A random model's
answers are noise, so each has as many tokens as it may have, on every system; `select` and patterns
work as ever.  What is shared, forked and forced is the programs', not the model's, so the gains can
be read as in figure 5.  The systems are opened one after another: a round is all workloads on one.

How to read it: a bar is a system's programs per second relative to ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.figures import Options
from scripts.bench.figures.throughput import MEASURE
from scripts.bench.in_turn import compare_in_turn, systems_of
from scripts.bench.random_models import prepare, save_weights
from scripts.bench.results import Result
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.report import result_of

TITLE = "Figure 7: throughput on Mixtral-8x7B"
SHAPE, SCALE = "mixtral-8x7b", 8


def run(options: Options, names: Sequence[str] = tuple(WORKLOADS), scale: int = SCALE) -> Result:
    with tempfile.TemporaryDirectory() as scratch:
        model = prepare(options, SHAPE, scale, Path(scratch))
        if options.peers and model.is_dummy and not options.real_shapes:
            model = save_weights(model)
        comparisons = compare_in_turn(options, names, systems_of(model, options))
    result = result_of(comparisons, MEASURE)
    result.notes.insert(0, f"The model: {model.name}; {model.settings['tp_size']} rank(s).")
    return result
