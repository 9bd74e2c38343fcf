"""The simulator behaves as its figures say."""

from __future__ import annotations

from xml.etree import ElementTree

from scripts.bench.simulate import Costs, best_hit_rate, few_shot, plot, simulate

PROMPTS = few_shot(subjects=8, questions=6)


def test_one_worker_with_room_for_all_has_the_best_hit_rate() -> None:
    got = simulate(PROMPTS, 1, "cache-aware", clients=1, output=1, costs=Costs(slots=200_000))
    assert got.hit_rate == best_hit_rate(PROMPTS)
    assert got.imbalance == 1.0
    # one prompt after the other, a step for each
    length = sum(map(len, PROMPTS))
    seconds = 48 * Costs().step + length * (1 - got.hit_rate) * Costs().prefill_token
    assert abs(got.throughput - 48 / seconds) < 1e-6


def test_prefixes_are_found_where_they_are_sent_and_not_by_turns() -> None:
    aware, turns = (
        simulate(PROMPTS, 4, policy, clients=4, output=4, costs=Costs(slots=4000), affinity=4.0)
        for policy in ("cache-aware", "round-robin")
    )
    assert turns.hit_rate < aware.hit_rate <= best_hit_rate(PROMPTS)
    assert turns.throughput < aware.throughput
    assert simulate(PROMPTS, 4, "random", clients=4, output=4, costs=Costs()).imbalance > 1


def test_the_plot_is_svg_with_a_line_for_each_policy() -> None:
    got = simulate(PROMPTS[:4], 1, "random", clients=1, output=1, costs=Costs())
    root = ElementTree.fromstring(plot({"random": {1: got, 2: got}}, "a < b"))
    lines = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if " L " in e.get("d", "")]
    assert len(lines) == 3
