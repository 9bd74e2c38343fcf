"""The three ways of choosing, on numbers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl.lang.choices import draw
from tests.lang.fake import FakeBackend


def decide(
    method: sgl.ChoicesSamplingMethod,
    inside: list[list[float]],
    alone: list[list[float | None]] | None = None,
) -> sgl.ChoicesDecision:
    """By the log-probabilities only; the choices are "0", "1", ..."""
    return method(
        choices=[str(i) for i in range(len(inside))],
        normalized_prompt_logprobs=[sum(row) / len(row) for row in inside],
        input_token_logprobs=[[[lp, 7, None] for lp in row] for row in inside],
        output_token_logprobs=[[] for _ in inside],
        unconditional_token_logprobs=(
            None if alone is None else [[[lp, 7, None] for lp in row] for row in alone]
        ),
    )


def test_each_method_has_its_own_winner() -> None:
    """C1: one token of -1, or a bad beginning that three sure tokens follow."""
    inside = [[-1.0], [-3.0, -0.1, -0.1, -0.1]]
    alone: Any = [[-6.0], [-7.0, -0.1, -0.1, -0.1]]
    assert decide(sgl.token_length_normalized, inside).decision == "1"
    assert decide(sgl.greedy_token_selection, inside).decision == "0"
    gains = decide(sgl.unconditional_likelihood_normalized, inside, alone)
    assert gains.decision == "0"
    assert gains.meta_info["normalized_unconditional_prompt_logprobs"] == [5.0, 1.0]


def test_the_first_token_alone_counts_as_it_is() -> None:
    """Nothing comes before it, so its None is a zero."""
    decision = decide(sgl.unconditional_likelihood_normalized, [[-2.0, -1.0]], [[None, -4.0]])
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == [0.5]
    with pytest.raises(ValueError, match="needs them"):
        decide(sgl.unconditional_likelihood_normalized, [[-1.0]])


def test_a_short_choice_goes_on_with_its_mean() -> None:
    decision = decide(sgl.greedy_token_selection, [[-1.0, -2.0], [-1.0, -2.0, -1.0, -1.0]])
    assert decision.meta_info["greedy_logprob_matrix"] == [
        [-1.0, -2.0, -1.5, -1.5],
        [-1.0, -2.0, -1.0, -1.0],
    ]
    assert decision.decision == "1"


@pytest.mark.parametrize(
    "method",
    [
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ],
    ids=lambda m: type(m).__name__,
)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([-0.5, -1.0, -2.0]), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_is_the_best_by_definition_and_the_first_of_equals(
    method: sgl.ChoicesSamplingMethod, rows: list[list[float]]
) -> None:
    alone: Any = [[None, *[-1.0] * (len(row) - 1)] for row in rows]

    def key(i: int) -> Any:
        row = rows[i]
        mean = sum(row) / len(row)
        if method is sgl.token_length_normalized:
            return mean
        if method is sgl.greedy_token_selection:
            return tuple(row + [mean] * (4 - len(row)))  # compared token by token
        return mean + (len(row) - 1) / len(row)

    decision = decide(method, rows, alone)
    best = max(range(len(rows)), key=key)
    assert math.isclose(sum_of(key(int(decision.decision))), sum_of(key(best)))
    if key(best) == key(int(decision.decision)):
        assert int(decision.decision) <= best
    for name in ("normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs"):
        assert len(decision.meta_info[name]) == len(rows)


def sum_of(value: Any) -> float:
    return sum(value) if isinstance(value, tuple) else value


class TestDrawing:
    decision = sgl.ChoicesDecision("b", {}, [math.log(0.2), math.log(0.8)])

    def test_is_by_softmax_of_the_scores(self) -> None:
        count = Counter(draw(self.decision, ["a", "b"], 1.0, seed) for seed in range(2000))
        assert abs(count["b"] / 2000 - 0.8) < 0.04
        count = Counter(draw(self.decision, ["a", "b"], 0.5, seed) for seed in range(2000))
        assert abs(count["b"] / 2000 - 16 / 17) < 0.03

    def test_at_zero_is_the_decision(self) -> None:
        assert draw(self.decision, ["a", "b"], 0, None) == "b"

    def test_needs_scores(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "Q" + sgl.select("x", ["a", "b"], 0.5, sgl.greedy_token_selection)

        with pytest.raises(ValueError, match="without scores to draw by"):
            f.run(backend=FakeBackend())

    def test_without_a_seed_is_not_always_the_same(self) -> None:
        drawn = {draw(self.decision, ["a", "b"], 5.0, None) for _ in range(100)}
        assert drawn == {"a", "b"}


def test_a_method_of_the_programs_own() -> None:
    class Longest(sgl.ChoicesSamplingMethod):
        def __call__(self, *, choices: Any, **_: Any) -> sgl.ChoicesDecision:
            return sgl.ChoicesDecision(max(choices, key=len), {"why": "long"})

    @sgl.function
    def f(s: sgl.ProgramState) -> None:
        s += "Q" + sgl.select("x", ["a", "ccc", "bb"], choices_method=Longest())

    state = f.run(backend=FakeBackend())
    assert (state["x"], state.get_meta_info("x")) == ("ccc", {"why": "long"})


class TestMistakes:
    @pytest.mark.parametrize("choices", [None, [], "ab", [""], ["a", ""], ["a", 3]])
    def test_choices(self, choices: Any) -> None:
        """C5."""
        with pytest.raises(ValueError, match="choice"):
            sgl.select("x", choices)

    def test_the_rest(self) -> None:
        with pytest.raises(ValueError, match="temperature=-1"):
            sgl.select("x", ["a"], -1)
        with pytest.raises(ValueError, match="choices with max_tokens"):
            sgl.gen("x", 5, choices=["a"])
        with pytest.raises(ValueError, match="choices with dtype"):
            sgl.gen("x", dtype=int, choices=["a"])
        with pytest.raises(ValueError, match="give choices to choose among"):
            sgl.gen("x", choices_method=sgl.greedy_token_selection)
