"""The examples run on the default model, all on one engine: the structure of what they make, and
that what their branches, turns and questions share was computed once."""

from __future__ import annotations

import doctest
import importlib
import io
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest

import minisgl.lang as sgl
from scripts import count_lines
from scripts.examples import (
    common,
    document_qa,
    essay_judge,
    few_shot,
    generative_agents,
    json_extraction,
    multi_turn_chat,
    rag,
    react,
    self_consistency,
    tip_suggestion,
    tree_of_thought,
)
from scripts.examples.plain import essay_judge as plain

SHORT = ["--max-tokens", "8"]
RECIPE = "Melt 50 grams of butter in a pan. Stir in two spoons of flour and half a litre of milk."
FOLDER = Path(common.__file__).parent
APART = {"common", "rag_dspy"}  # which needs DSPy: tests/lang/test_dspy.py
NAMES = sorted(p.stem for p in FOLDER.glob("[a-z]*.py") if p.stem not in APART)


@pytest.fixture(scope="module", autouse=True)
def runtime(default_model_dir: Path) -> Iterator[sgl.Runtime]:
    """The default model, as the default backend of this file."""
    with sgl.Runtime(str(default_model_dir), kv_tokens=8192) as runtime:
        sgl.set_default_backend(runtime)
        yield runtime
        sgl.set_default_backend(None)


@pytest.fixture(autouse=True)
def cold(runtime: sgl.Runtime) -> None:
    """No example finds what another has computed."""
    assert sgl.flush_cache()


def cached(state: sgl.ProgramState, name: str) -> int:
    meta = state.get_meta_info(name)
    assert 0 <= meta["cached_tokens"] < meta["prompt_tokens"]
    return meta["cached_tokens"]


def write_jsonl(path: Path, items: list[Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


# ---------------------------------------------------------------------- one after another


def test_essay_judge(capsys: pytest.CaptureFixture[str]) -> None:
    (state,) = essay_judge.main(SHORT)
    assert state["kind"] == "an essay"
    assert len(state["judgment"]) == len(essay_judge.DIMENSIONS) == 6
    assert set(json.loads(state["report"])) == {"summary", "grade"}
    roles = [message["role"] for message in state.messages()]
    assert roles == ["system", *["user", "assistant"] * 2]  # the branches are no part of it
    # The report finds the essay, though six branches were in between.
    essay = len(sgl_tokens(essay_judge.ESSAY))
    assert cached(state, "report") > essay
    printed = capsys.readouterr().out
    assert all(f"--- {dimension}\n" in printed for dimension in essay_judge.DIMENSIONS)


def sgl_tokens(text: str) -> list[int]:
    backend = sgl.global_config.default_backend
    return backend.engine.tokenizer.encode(text, add_special_tokens=False)


def test_essay_judge_ends_early() -> None:
    state = essay_judge.essay_judge.run(RECIPE, max_tokens=8)
    assert state["kind"] == "a recipe"
    assert "judgment" not in state and "report" not in state


def test_essay_judge_says_that_this_model_sees_no_pictures() -> None:
    with pytest.raises(ValueError, match="can't see"):
        essay_judge.essay_judge.run(RECIPE, picture="park.png")


def test_tip_suggestion() -> None:
    states = tip_suggestion.main(SHORT)
    for state, topic in zip(states, tip_suggestion.TOPICS, strict=True):
        assert len(state["paragraph"]) == topic["number"]
        assert all(f"tip_{i}" in state for i in range(topic["number"]))
        assert f"tip_{topic['number']}" not in state


def test_tree_of_thought(runtime: sgl.Runtime) -> None:
    before = runtime.engine.stats()
    state = tree_of_thought.tree_of_thought.run(
        "What is 2 + 2?", branches=2, temperature=0.3, max_tokens=8
    )
    after = runtime.engine.stats()
    hints = 1 + 2 + 4  # of the forks
    assert after.requests - before.requests == 2 + 4 + 8 + hints
    assert after.cached_tokens > before.cached_tokens
    assert "plan" not in state  # the branches keep their own


def test_react() -> None:
    (state,) = react.main(["--max-tokens", "24"])
    assert state["action"] == "Finish"
    assert state.ret_value == state["argument"] and "]" not in state["argument"]
    story = state.text().removeprefix(react.INSTRUCTIONS)
    ((_, steps),) = react.TRACES[0].items()
    turns = story.count("Observation ")
    assert turns >= 1
    for turn, step in zip(range(turns), steps, strict=False):
        assert f"Observation {turn + 1}: {step['observation']}\n" in story
    # The last turn computes its own words only, all before is cached.
    last = story.rsplit("Observation", 1)[1]
    meta = state.get_meta_info("argument")
    assert meta["prompt_tokens"] - cached(state, "argument") < len(sgl_tokens(last))


def test_react_has_to_finish() -> None:
    state = react.react.run("Question: 1 + 1?", react.replay([]), turns=1, max_tokens=4)
    assert state["action"] == "Finish"
    assert react.replay([])("Lookup", "x") == "No results for Lookup[x]."


def test_generative_agents() -> None:
    states = generative_agents.main(["--max-tokens", "5"])
    assert [next(iter(call)) for call in generative_agents.CALLS] == list(
        generative_agents.PROGRAMS
    )
    poignancy, _, _, sector, room = states
    assert 1 <= int(poignancy["out"]) <= 10
    assert sector["out"] in ("the mill", "the inn", "the church")
    assert room["out"] in ("kitchen", "taproom")


def test_few_shot(capsys: pytest.CaptureFixture[str]) -> None:
    states = few_shot.main([])
    asked = few_shot.SAMPLE[few_shot.SHOTS :]
    for state, (_, endings, _) in zip(states, asked, strict=True):
        assert state["answer"] in endings
        assert state.text().startswith(few_shot.SAMPLE[0][0])
    right = sum(s["answer"] == ends[i] for s, (_, ends, i) in zip(states, asked, strict=True))
    assert capsys.readouterr().out == f"{right} of {len(asked)} right\n"


def test_self_consistency() -> None:
    (state,) = self_consistency.main(SHORT)
    assert len(state["answers"]) == 8
    votes = [common.last_number(answer) for answer in state["answers"]]
    assert state.ret_value == common.majority(votes)
    metas = state.get_meta_info("answers")
    assert sum(meta["cached_tokens"] for meta in metas) > 0  # one prompt, and eight answers


def test_rag() -> None:
    first, second = rag.main(SHORT)
    assert all(rag.CORPUS[0] in state.text() for state in (first, second))
    passage = len(sgl_tokens(rag.CORPUS[0]))
    assert cached(second, "answer") > max(passage, cached(first, "answer"))


def test_rag_ranks_by_words_that_are_rare() -> None:
    retrieve = rag.Retriever(rag.CORPUS)
    assert retrieve("Who lives from bees?", k=1) == [rag.CORPUS[2]]
    assert retrieve("the ferry", k=1) == [rag.CORPUS[1]]
    assert retrieve("ferry honey", k=2) == [rag.CORPUS[1], rag.CORPUS[3]]  # the corpus' order
    assert retrieve("nothing known", k=9) == rag.CORPUS


def test_multi_turn_chat() -> None:
    states = multi_turn_chat.main(SHORT)
    for state, turns in zip(states, multi_turn_chat.CHATS, strict=True):
        assert len(state.messages()) == 1 + 2 * len(turns)
        prompts = [state.get_meta_info(f"answer_{i}")["prompt_tokens"] for i in range(len(turns))]
        for i, before in itertools.islice(enumerate([0, *prompts]), 1, len(turns)):
            assert cached(state, f"answer_{i}") >= before  # all of the turns before


def test_json_extraction() -> None:
    states = json_extraction.main([])
    assert len(states) == len(json_extraction.DOCUMENTS)
    for state in states:
        jsonschema.validate(state.ret_value, json_extraction.FACTS)
        meta = state.get_meta_info("facts")
        assert meta["completion_tokens_wo_jump_forward"] < meta["completion_tokens"]


def test_document_qa() -> None:
    (state,) = document_qa.main(SHORT)
    text = state.text()
    places = [text.index(document) for document in document_qa.DOCUMENTS]
    assert places == sorted(places)  # of the branches, in their order
    assert text.count("\nNote:") == len(document_qa.DOCUMENTS)
    assert text.endswith(state["answer"])
    first = text[: text.index("\n\nDocument 2")]  # the first branch, note and all
    assert cached(state, "answer") >= len(sgl_tokens(first)) - 1  # a token may go across its end


# ---------------------------------------------------------------------- what they have in common


def test_every_example_is_tested_and_documented() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    readme = (FOLDER.parents[1] / "docs" / "lang.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert name in tested, name
        module = importlib.import_module(f"scripts.examples.{name}")
        assert f"python -m scripts.examples.{name}" in (module.__doc__ or "")
        assert f"{name}.py" in readme


REAL = {
    "document_qa": [{"documents": ["a b", "c d"], "questions": ["b?", "d?"], "answers": ["", ""]}],
    "essay_judge": [RECIPE],
    "few_shot": [
        {"ctx": f"One and {i}", "endings": ["is.", "was."], "label": 0, "ind": i} for i in range(7)
    ],
    "generative_agents": [{"generate_pronunciatio": {"action": "sleeping"}}],
    "json_extraction": [{"title": "Lim", "document": "The Lim is a river."}],
    "multi_turn_chat": [{"question_id": 1, "category": "x", "turns": ["Hi!", "Again!"]}],
    "rag": [{"paragraphs": ["a b", "c d"], "qas": [{"q": "b?", "a": "a", "p": 0}]}],
    "react": [{"Question: 1?": [{"thought": "t", "action": "a", "observation": "o"}]}],
    "self_consistency": [{"question": "1 + 1?", "answer": "2\n#### 2"}],
    "tip_suggestion": [{"topic": "rest", "number": 2}],
    "tree_of_thought": [{"question": "1 + 1?", "answer": "2\n#### 2"}],
}  # the forms of the published files


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_data_is_read(name: str, tmp_path: Path) -> None:
    assert sorted(REAL) == NAMES
    file = write_jsonl(tmp_path / "data.jsonl", REAL[name])
    module = importlib.import_module(f"scripts.examples.{name}")
    tokens = "256" if name == "json_extraction" else "2"
    states = module.main(["--data", str(file), "--limit", "1", "--max-tokens", tokens])
    assert len(states) == 1


def test_mmlu_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mmlu.csv"
    file.write_text(
        'question,choice0,choice1,choice2,choice3,answer\n"1,\n2?",a,b,c,d,3\nx,a,b,c,d,B\n'
    )
    (beginning, letters, answer), other = few_shot.read(file)
    assert beginning == "1,\n2?\nA. a\nB. b\nC. c\nD. d\nAnswer:"
    assert (letters, answer, other[2]) == (["A", "B", "C", "D"], 3, 1)


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rag.main(["--limit", "0"])
    assert "--limit 0: give a number of at least 1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="max_tokens=-1"):
        rag.main(["--max-tokens", "-1"])


# ---------------------------------------------------------------------- the plain one


class Chat:
    """A client with `openai`'s interface, whose answers a function makes."""

    def __init__(self, answer: Callable[[list[Any]], str]) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answer = answer
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **call: Any) -> Any:
        self.calls.append(call)
        message = SimpleNamespace(content=self.answer(call["messages"]))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def scripted(messages: list[Any]) -> str:
    question = str(messages[-1]["content"])
    if "What kind" in question:
        return "It is an essay."
    if "as JSON" in question:
        return '{"summary": "Short and clear.", "grade": "B+"}'
    return f"{question.split()[2]} is fine."


def test_the_plain_judge_does_the_same() -> None:
    client = Chat(scripted)
    told = plain.essay_judge(client, "m", essay_judge.ESSAY)
    assert told["judgment"] == [f"{dimension} is fine." for dimension in essay_judge.DIMENSIONS]
    assert json.loads(told["report"])["grade"] == "B+"
    # Its conversation is the language's, message by message.
    state = essay_judge.essay_judge.run(essay_judge.ESSAY, max_tokens=4)
    said = [m for m in state.messages() if m["role"] != "assistant"]
    asked = [m for m in client.calls[-1]["messages"] if m["role"] != "assistant"]
    assert [m["content"] for m in said[:2]] == [m["content"] for m in asked[:2]]
    assert (plain.DIMENSIONS, plain.REPORT, plain.KINDS) == (
        essay_judge.DIMENSIONS, essay_judge.REPORT, essay_judge.KINDS,
    )  # fmt: skip


def test_the_plain_judge_ends_early_and_asks_again(tmp_path: Path) -> None:
    answers = iter(["Hm.", "It is a recipe."])
    client = Chat(lambda _: next(answers))
    picture = tmp_path / "park.png"
    picture.write_bytes(b"\x89PNG")
    assert plain.essay_judge(client, "m", RECIPE, picture) == {"kind": "a recipe"}
    text, image = client.calls[1]["messages"][-1]["content"]
    assert RECIPE in text["text"]
    assert image["image_url"]["url"] == "data:image/png;base64,iVBORw=="
    assert [call["temperature"] for call in client.calls] == [0.0, 0.7]
    with pytest.raises(ValueError, match="3 answers, and none has the form"):
        plain.essay_judge(Chat(lambda _: "Hm."), "m", RECIPE)


def test_the_language_takes_fewer_lines(capsys: pytest.CaptureFixture[str]) -> None:
    count_lines.main()
    printed = capsys.readouterr().out
    page = (FOLDER.parents[1] / "docs" / "lang.md").read_text(encoding="utf-8")
    assert printed in page, "python -m scripts.count_lines"


def test_only_code_is_counted() -> None:
    source = '''
        import os

        WORDS = [
            1,
        ]

        @decorated
        def f(x):
            """Says

            much."""

            # why
            def g():
                "Says nothing."
                return """two
        lines"""
            return g

        def main():
            f(1)
    '''
    assert count_lines.code_lines(textwrap.dedent(source)) == 6


def test_the_readmes_program_prints_what_it_shows() -> None:
    readme = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    section = readme.split("## A program\n", 1)[1]
    source, shown = re.findall(r"^```(?:python|text)\n(.*?)^```", section, re.DOTALL | re.M)[:2]
    with redirect_stdout(io.StringIO()) as printed:
        exec(source, {})  # on this file's default backend, the same as the README's
    assert printed.getvalue() == shown


@pytest.mark.parametrize("module", [common, count_lines])
def test_helpers_do_what_their_docstrings_show(module: ModuleType) -> None:
    told = doctest.testmod(module)
    assert told.attempted > 0 and told.failed == 0
