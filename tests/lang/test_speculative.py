"""API speculation: the same texts as without it, from fewer calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl.lang.backends.base import Answer
from minisgl.lang.context import Context
from minisgl.lang.stops import Trimmer, cut
from minisgl.lang.usage import Price, Tally, Usage
from minisgl.sampling import SamplingParams
from tests.lang.text_model import TextModel, knows

FIELDS = "Name: Ada\nBirthday: December 10\nJob: mathematician\n"


def words_end(text: str) -> bool:
    return not text[-1].isalpha()


@sgl.function(num_api_spec_tokens=64)
def three_fields(s, ask="Who?\n"):
    s += ask + "Name:" + sgl.gen("name", stop="\n")
    s += "\nBirthday:" + sgl.gen("birthday", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")


def plain(program: sgl.Function[..., Any]) -> sgl.Function[..., Any]:
    """The same without speculation."""
    return sgl.Function(program.func)


# ---------------------------------------------------------------------- any program

LETTERS = "ab\n"
texts = st.text(LETTERS, min_size=1, max_size=3)
gens = st.tuples(
    st.lists(st.sampled_from(["a", "b", "\n", "ab", "\nb"]), max_size=2, unique=True),
    st.integers(1, 7),
)


@st.composite
def documents_and_steps(draw: st.DrawFn, *, forks: bool) -> tuple[str, list[Any]]:
    """What a model knows, and a program whose words are in part the model's own."""
    document = draw(st.text(LETTERS, min_size=1, max_size=40))
    start = st.integers(0, len(document) - 1)
    own = st.builds(lambda i, size: document[i : i + size], start, st.integers(1, 6))
    step = texts | own | gens
    if forks:
        step = step | st.lists(step, max_size=3)
    return document, draw(st.lists(step, min_size=2, max_size=7))


def write(s: sgl.ProgramState, steps: list[Any], states: list[sgl.ProgramState]) -> None:
    """Texts, gens and, as lists, branches."""
    for step in steps:
        match step:
            case str():
                s += step
            case (list() as stop, int() as most):
                s += sgl.gen(stop=stop or None, max_tokens=most)
            case list():
                branches = s.fork(2)
                for branch in branches:
                    write(branch, step, states)
                    states.append(branch)


@given(
    known=documents_and_steps(forks=True),
    spec=st.integers(1, 30),
    tells=st.booleans(),
    stream=st.booleans(),
)
def test_any_program_is_the_same_with_and_without(
    known: tuple[str, list[Any]], spec: int, tells: bool, stream: bool
) -> None:
    document, steps = known

    def program(s: sgl.ProgramState) -> list[sgl.ProgramState]:
        states: list[sgl.ProgramState] = []
        s += "\n"
        write(s, steps, states)
        return states

    def outcome(tokens: int | None) -> tuple[list[Any], Usage]:
        model = TextModel(knows(document), tells_tokens=tells)
        function = sgl.Function(program, num_api_spec_tokens=tokens)
        state = function.run(backend=model, temperature=0, stream=stream)
        shown = "".join(state.text_iter())
        all_states = [state, *state.ret_value]
        names = [list(s.stream_executor.outline.variables) for s in all_states]
        found = [
            (s.text(), [(n, s[n]) for n in ns]) for s, ns in zip(all_states, names, strict=True)
        ]
        assert shown == state.text()
        usage = state.usage()
        assert usage.spent.calls == len(model.calls)
        return found, usage

    expected, own = outcome(None)
    found, usage = outcome(spec)
    assert found == expected
    assert usage.without.calls == own.spent.calls == own.without.calls
    if tells:
        assert usage.without.completion_tokens == own.spent.completion_tokens


@given(known=documents_and_steps(forks=False), spec=st.integers(1, 30), tells=st.booleans())
def test_a_chat_model_that_only_answers_says_the_same_or_an_error(
    known: tuple[str, list[Any]], spec: int, tells: bool
) -> None:
    document, steps = known

    def program(s: sgl.ProgramState) -> None:
        s += sgl.user("Go.")
        with s.assistant():
            write(s, steps, [])

    def model(can_continue: bool) -> TextModel:
        return TextModel(
            knows(document), tells_tokens=tells, is_chat=True, can_continue=can_continue
        )

    expected = sgl.Function(program).run(backend=model(True), temperature=0)
    try:
        found = sgl.Function(program, num_api_spec_tokens=spec).run(
            backend=model(False), temperature=0
        )
    except ValueError as error:
        assert "can't go on with words that the assistant has begun" in str(error)
    else:
        assert found.text() == expected.text()
        assert found.messages() == expected.messages()


@given(st.text(LETTERS, max_size=12), st.lists(st.integers(1, 4)), st.lists(texts, max_size=3))
def test_a_trimmed_stream_is_the_cut_text(text: str, sizes: list[int], stops: list[str]) -> None:
    trimmer, shown, rest = Trimmer(stops), "", text
    for size in [*sizes, len(text)]:
        shown += trimmer.feed(rest[:size])
        assert text.startswith(shown)
        rest = rest[size:]
    assert (shown + trimmer.flush(), trimmer.matched) == cut(text, stops)


# ---------------------------------------------------------------------- what it saves


@pytest.mark.parametrize("stream", [False, True])
def test_e12_one_call_when_a_completion_goes_as_the_program_does(stream: bool) -> None:
    model = TextModel(knows(FIELDS), ends_token=words_end)
    state = three_fields.run(backend=model, temperature=0, stream=stream)
    assert state["name"] == " Ada" and state["job"] == " mathematician"
    assert state["birthday"] == " December 10"
    assert len(model.calls) == 1
    (prompt, asked) = model.calls[0]
    assert prompt == "Who?\nName:" and asked.stop == ()

    without = plain(three_fields).run(backend=TextModel(knows(FIELDS), ends_token=words_end))
    assert without.text() == state.text()
    usage, own = state.usage(), without.usage()
    assert usage.saved_calls == 2 and own.saved_calls == own.saved_prompt_tokens == 0
    # The tokens are the model's own, so this is what three calls send, to the token.
    assert usage.without == own.spent
    assert usage.saved_prompt_tokens == own.spent.prompt_tokens - usage.spent.prompt_tokens > 0


def test_e12_one_call_when_a_chat_reply_goes_as_the_program_does() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def chat(s):
        s += sgl.user("Who?")
        with s.assistant():
            s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:"
            s += sgl.gen("birthday", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

    model = TextModel(lambda _: FIELDS, is_chat=True, can_continue=False)
    state = chat.run(backend=model)
    assert [state[v] for v in ("name", "birthday", "job")] == [
        " Ada", " December 10", " mathematician",
    ]  # fmt: skip
    assert state.messages()[-1]["content"] == FIELDS.rstrip("\n")
    assert len(model.calls) == 1 and model.calls[0][0].endswith("assistant\n")
    assert state.get_meta_info("job")["from_api_speculation"] is True
    assert state.usage().saved_calls == 2


def test_a_reply_that_begins_otherwise_is_an_error_and_never_a_wrong_text() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def chat(s):
        s += sgl.user("Who?") + sgl.assistant("Name:" + sgl.gen("name", stop="\n"))

    replies = iter(["I think", "Name Ada", "Name: Ada\n", "no fourth try"])
    model = TextModel(lambda _: next(replies), is_chat=True, can_continue=False)
    assert chat.run(backend=model)["name"] == " Ada"
    model = TextModel(lambda _: "I think: Ada", is_chat=True, can_continue=False)
    with pytest.raises(ValueError, match=r"its own reply was not 'Name:' .* but 'I think: Ada'"):
        chat.run(backend=model)
    assert len(model.calls) == 3


def test_one_other_character_is_an_own_call() -> None:
    model = TextModel(knows("Name: Ada\nBirthday : 1\nJob: x\n"), ends_token=words_end)
    state = three_fields.run(backend=model, temperature=0)
    texts = [text for text, _ in model.calls]
    assert texts[1] == "Who?\nName: Ada\nBirthday:"
    assert model.calls[1][1].stop == ("\n",)  # what was said ahead was wrong: no second bet
    assert state.usage().saved_calls == 0


def test_what_ends_too_early_is_asked_for_and_speculated_on_again() -> None:
    @sgl.function(num_api_spec_tokens=8)
    def fields(s):
        s += "N:" + sgl.gen("a", stop="\n", max_tokens=4) + "\nB:"
        s += sgl.gen("b", stop="\n", max_tokens=4) + "\nJ:" + sgl.gen("c", stop="\n", max_tokens=4)
        s += "\nK:" + sgl.gen("d", stop="\n", max_tokens=4)

    model = TextModel(knows("N:1\nB:2\nJ:3\nK:4\n"), ends_token=lambda _: True)
    state = fields.run(backend=model)
    assert [state[n] for n in "abcd"] == ["1", "2", "3", "4"]
    assert [text for text, _ in model.calls] == ["N:", "N:1\nB:2\nJ:"]
    assert state.usage().saved_calls == 2


def test_max_tokens_counts_tokens_and_not_characters() -> None:
    @sgl.function(num_api_spec_tokens=50)
    def two(s):
        s += "N:" + sgl.gen("a", max_tokens=2) + sgl.gen("b", max_tokens=1)

    says = knows("N: one two three four")
    model = TextModel(says, ends_token=words_end)
    state = two.run(backend=model)
    assert (state["a"], state["b"]) == (" one ", "two ")
    assert state.get_meta_info("a")["finish_reason"] == {"type": "length", "length": 2}
    assert len(model.calls) == 1

    untold = TextModel(says, ends_token=words_end, tells_tokens=False)
    state = two.run(backend=untold)
    assert (state["a"], state["b"]) == (" one ", "two ")
    assert [params.max_tokens for _, params in untold.calls] == [2, 1]  # it can't be cut at tokens


def test_what_needs_a_call_of_its_own_makes_one() -> None:
    apart = [
        {"regex": "[0-9]"},
        {"n": 2},
        {"logprobs": 0},
        {"frequency_penalty": 1.0},
        {"temperature": 0.5},
        {"min_tokens": 1},
    ]
    for settings in apart:

        @sgl.function(num_api_spec_tokens=64)
        def program(s, settings=settings):
            s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:"
            s += sgl.gen("b", **{"stop": "\n", **settings})

        model = TextModel(knows(FIELDS))
        state = program.run(backend=model, temperature=0)
        assert state["b"] == (" December 10" if "n" not in settings else [" December 10"] * 2)
        assert len(model.calls) == 2, settings

        @sgl.function(num_api_spec_tokens=64)
        def first(s, settings=settings):
            s += "Name:" + sgl.gen("name", **{"stop": "\n", "max_tokens": 9, **settings})

        first.run(backend=(model := TextModel(knows(FIELDS))))
        if "temperature" not in settings:
            assert model.calls[0][1].stop == ("\n",) and model.calls[0][1].max_tokens == 9


def test_a_streamed_gen_asks_for_no_more_than_it_may_show() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += "Name:" + sgl.gen("name", stop="\n", max_tokens=9)

    for stream, most in ((True, 9), (False, 64)):
        model = TextModel(knows(FIELDS))
        state = program.run(backend=model, stream=stream)
        assert state["name"] == " Ada" and model.calls[0][1].max_tokens == most


def test_a_reply_that_is_over_has_no_second_answer() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def chat(s):
        s += sgl.user("Who?") + sgl.assistant(sgl.gen("a") + sgl.gen("b"))

    model = TextModel(lambda _: "Ada", is_chat=True, can_continue=False)
    with pytest.raises(ValueError, match="can't go on with words that the assistant has begun"):
        chat.run(backend=model)


# ---------------------------------------------------------------------- branches


def test_branches_know_what_was_said_before_them() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += "Name:" + sgl.gen("name", stop="\n") + "\n"
        branches = s.fork(2)
        branches += ["Birthday:", "Job:"]
        branches += sgl.gen("field", stop="\n")
        branches.join()

    model = TextModel(knows(FIELDS))
    state = program.run(backend=model, temperature=0)
    assert state["field"] == [" December 10", " mathematician"]
    assert len(model.calls) == 2  # the first branch goes on as the model did, the second does not


def test_branches_don_t_share_what_was_drawn_by_chance() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:"
        branches = s.fork(3)
        branches += sgl.gen("day", stop="\n")
        branches.join()

    model = TextModel(knows(FIELDS))
    program.run(backend=model, temperature=1.0)
    assert len(model.calls) == 4
    program.run(backend=(cold := TextModel(knows(FIELDS))), temperature=0)
    assert len(cold.calls) == 1


def test_a_role_s_surplus_is_not_another_role_s() -> None:
    """A chat reply that speaks for the user, too, as the template would print it."""

    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.user("1") + sgl.assistant(sgl.gen("a", stop="<"))
        s += sgl.user("2") + sgl.assistant(sgl.gen("b", stop="<"))

    turn = "yes<|im_end|>\n<|im_start|>user\n2<|im_end|>\n<|im_start|>assistant\nno<"
    model = TextModel(lambda _: turn, is_chat=True)
    state = program.run(backend=model)
    assert (state["a"], state["b"]) == ("yes", "yes") and len(model.calls) == 2


def test_a_hundred_programs_at_once() -> None:
    model = TextModel(knows(FIELDS))
    states = three_fields.run_batch([{"ask": f"Who is {i}?\n"} for i in range(100)], backend=model)
    assert {state["job"] for state in states} == {" mathematician"}
    total = sum((state.usage() for state in states), Usage())
    assert (total.spent.calls, total.saved_calls) == (100, 200) and len(model.calls) == 100


# ---------------------------------------------------------------------- around it


def test_the_number_of_tokens_is_checked_and_bind_keeps_it() -> None:
    def program(s):
        s += sgl.gen("x")

    for wrong in (0, -1, 1.5, True, "64"):
        with pytest.raises(ValueError, match="num_api_spec_tokens="):
            sgl.function(num_api_spec_tokens=wrong)
    assert sgl.function(api_num_spec_tokens=7)(program).num_api_spec_tokens == 7
    assert sgl.function(program).num_api_spec_tokens is None

    def named(s, ask):
        s += ask

    bound = sgl.function(num_api_spec_tokens=5)(named).bind(ask="Who?")
    assert bound.num_api_spec_tokens == 5


def test_usage_is_priced() -> None:
    usage = Usage("m", Tally(1, 1000, 400, 50), Tally(3, 3000, 0, 30))
    prices = {"m": Price(prompt=2.0, completion=10.0, cached=0.5)}
    assert usage.cost(prices) == pytest.approx((600 * 2 + 400 * 0.5 + 50 * 10) / 1e6)
    assert usage.cost_without(prices) == pytest.approx((3000 * 2 + 30 * 10) / 1e6)
    assert (usage.saved_calls, usage.saved_prompt_tokens) == (2, 2000)
    assert usage.extra_completion_tokens == 20
    with pytest.raises(ValueError, match=r"no price of 'm'; the table has \['other'\]"):
        usage.cost({"other": Price(1, 1)})
    with pytest.raises(ValueError, match="different models"):
        usage + Usage("other")


def test_an_answer_whose_tokens_don_t_make_up_its_text() -> None:
    """Half a character in a token: it is not known where tokens end, so their bytes bound them."""

    class Halves(TextModel):
        async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
            (answer,) = await super().generate(context, params)
            if "output_token_logprobs" in answer.meta:
                answer.meta["output_token_logprobs"] = [[-1.0, None, "�"]]
            return [answer]

    @sgl.function(num_api_spec_tokens=64)
    def two(s):
        s += "N:" + sgl.gen("a", max_tokens=2, stop="\n") + "\nB:"
        s += sgl.gen("b", max_tokens=9, stop="\n")

    model = Halves(knows("N:é\nB:ü\n"), ends_token=lambda _: True)
    state = asyncio.run(two.arun(backend=model))
    assert (state["a"], state["b"]) == ("é", "ü")
    assert len(model.calls) == 2  # "é\n" has three bytes: perhaps three tokens
