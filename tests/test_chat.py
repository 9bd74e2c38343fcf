"""The chat program: against an engine that says what it is told, and against a real tiny one."""

from __future__ import annotations

import io
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minisgl import chat as module
from minisgl.chat import line_editing, main
from minisgl.chat_commands import COMMANDS, command, load_messages, talk
from minisgl.chat_template import ChatTemplate
from minisgl.chat_turns import Chat
from minisgl.engine.output import Chunk, Completion, FinishReason
from minisgl.engine.stats import Stats
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer
from tests import toy_tokenizers as toys
from tests.engine.pictures import LLAVA, picture
from tests.models.tiny_llava import make_tiny_llava

ROOT = Path(__file__).parents[1]


class ScriptedEngine:
    """Answers each prompt with the next of `answers`, piece by piece."""

    def __init__(self, directory: Path, context_length: int = 10_000) -> None:
        self.tokenizer = Tokenizer(directory)
        self.chat_template = ChatTemplate(directory)
        self.door = SimpleNamespace(encoder=self.tokenizer, image_reader=None)
        self.context_length = context_length
        self.answers: list[Sequence[str | BaseException]] = []
        self.finish_reason: FinishReason = "stop"
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []
        self.streams: list[Iterator[Chunk]] = []  # kept, so that only close() closes them
        self.closed_early = 0

    def stream(self, prompt: list[int], params: SamplingParams) -> Iterator[Chunk]:
        self.prompts.append(self.tokenizer.decode(prompt, skip_special_tokens=False))
        self.params.append(params)
        self.streams.append(self._pieces(prompt, self.answers.pop(0)))
        return self.streams[-1]

    def _pieces(self, prompt: list[int], answer: Sequence[str | BaseException]) -> Iterator[Chunk]:
        try:
            for piece in answer[:-1]:
                if isinstance(piece, BaseException):
                    raise piece
                yield Chunk(piece, [5])
        except GeneratorExit:
            self.closed_early += 1
            raise
        if isinstance(answer[-1], BaseException):
            raise answer[-1]
        done = Completion(
            text="".join(map(str, answer)),
            token_ids=[5] * len(answer),
            finish_reason=self.finish_reason,
            stop_match=None,
            prompt_tokens=len(prompt),
            cached_tokens=3,
            completion_tokens=len(answer),
        )
        yield Chunk(answer[-1], [5], done)

    def stats(self) -> Stats:
        return Stats(
            requests=9, prompt_tokens=40, cached_tokens=10, output_tokens=6, steps=8, retractions=5,
            busy_seconds=1.5, waiting=4, running=3, pool_slots=100, free_slots=60, tree_slots=38,
            locked_slots=20, request_slots=2,
            ttft_p50=0.0123, ttft_p99=0.5, step_p50=0.004, step_p99=0.0091,
        )  # fmt: skip

    def tree(self) -> str:
        return "(root)\n└── hello"


@pytest.fixture
def engine(tmp_path: Path) -> ScriptedEngine:
    return ScriptedEngine(toys.byte_level(tmp_path / "model"))


class Talk:
    """A `Chat` whose keyboard is a list of lines."""

    def __init__(self, engine: ScriptedEngine, **options: Any) -> None:
        self.out, self.notices = io.StringIO(), io.StringIO()
        self.engine = engine
        options.setdefault("params", SamplingParams(temperature=0.0))
        self.chat = Chat(cast(Any, engine), out=self.out, notices=self.notices, **options)

    def type(self, *lines: str | BaseException) -> str:
        """What is printed after these lines and Ctrl-D."""
        keyboard = iter([*lines, EOFError()])

        def read(prompt: str) -> str:
            line = next(keyboard)
            if isinstance(line, BaseException):
                raise line
            return line

        at = self.out.tell()
        talk(self.chat, read)
        return self.out.getvalue()[at:]

    @property
    def notes(self) -> str:
        return self.notices.getvalue()

    @property
    def roles(self) -> list[str]:
        return [m["role"] for m in self.chat.messages]


# ---------------------------------------------------------------------- turns


def test_answers_stream_and_turns_add_up(engine: ScriptedEngine) -> None:
    engine.answers = [["Hel", "lo", "!"], ["Bye\n"]]
    talk = Talk(engine, system="Be brief.")
    assert talk.type("Hi", "", "   ", "See you") == "Hello!\nBye\n\n"
    assert talk.notes == ""
    assert engine.prompts[1] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nSee you<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_pieces_are_flushed_as_they_come(engine: ScriptedEngine) -> None:
    seen: list[str] = []

    class Screen(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    engine.answers = [["a", "b"]]
    Chat(cast(Any, engine), SamplingParams(), out=Screen()).answer("Hi")
    assert seen[:2] == ["a", "ab"]


def test_line_that_goes_on_and_line_that_begins_with_a_slash(engine: ScriptedEngine) -> None:
    engine.answers = [["ok"], ["ok"]]
    talk = Talk(engine)
    talk.type("one\\", "two", "//etc")
    assert [m["content"] for m in talk.chat.messages[::2]] == ["one\ntwo", "/etc"]


def test_ctrl_c_stops_the_answer_and_not_the_program(engine: ScriptedEngine) -> None:
    engine.answers = [["It is", KeyboardInterrupt(), "x"], ["fine"]]
    talk = Talk(engine)
    assert talk.type("Hi", "And now?") == "It is\nfine\n\n"
    assert "[stopped]" in talk.notes
    assert [m["content"] for m in talk.chat.messages] == ["Hi", "It is", "And now?", "fine"]


def test_ctrl_c_while_printing_closes_the_request(engine: ScriptedEngine) -> None:
    class Screen(io.StringIO):
        def flush(self) -> None:
            if self.getvalue() == "ab":
                raise KeyboardInterrupt

    engine.answers = [["a", "b", "c", "d"]]
    chat = Chat(cast(Any, engine), SamplingParams(), out=Screen(), notices=io.StringIO())
    assert chat.answer("Hi") is None
    assert engine.closed_early == 1
    assert chat.messages[-1] == {"role": "assistant", "content": "ab"}


def test_ctrl_c_before_the_first_word_takes_the_question_back(engine: ScriptedEngine) -> None:
    engine.answers = [[KeyboardInterrupt()], ["", ""], ["ok"]]
    talk = Talk(engine)
    talk.type("Hi", "Hello", "Hey")
    assert "[stopped; the question is taken back]" in talk.notes
    assert "[no answer; the question is taken back]" in talk.notes
    assert [m["content"] for m in talk.chat.messages] == ["Hey", "ok"]


def test_ctrl_c_at_the_prompt_only_says_how_to_leave(engine: ScriptedEngine) -> None:
    engine.answers = [["ok"]]
    talk = Talk(engine)
    assert talk.type(KeyboardInterrupt(), "Hi") == "\nok\n\n"
    assert "Ctrl-D leaves" in talk.notes


@pytest.mark.parametrize("error", [ValueError("bad prompt"), RuntimeError("the engine is closed")])
def test_an_error_is_shown_and_the_next_turn_is_served(
    engine: ScriptedEngine, error: Exception
) -> None:
    engine.answers = [[error], ["ok"]]
    talk = Talk(engine)
    assert talk.type("Hi", "Again") == "ok\n\n"
    assert str(error) in talk.notes
    assert [m["content"] for m in talk.chat.messages] == ["Again", "ok"]


def test_full_context_is_said_with_numbers_and_nothing_is_dropped(engine: ScriptedEngine) -> None:
    engine.context_length = 60
    engine.answers = [["ok"], ["new"]]
    talk = Talk(engine)
    out = talk.type("Hi", "there " * 40, "/reset", "Hi")
    assert out == "ok\nnew\n\n"
    assert "the context holds 60" in talk.notes and "/reset" in talk.notes
    assert len(engine.prompts) == 2


def test_answer_that_fills_the_context(engine: ScriptedEngine) -> None:
    engine.answers, engine.finish_reason = [["ok", "!"], ["ok", "!"]], "length"
    talk = Talk(engine)
    talk.type("Hi", "/set max_tokens 2", "Hi")
    full, cut = [line for line in talk.notes.splitlines() if "max_tokens is" not in line]
    assert "the context is full" in full and "2 of answer" in full and "of 10000" in full
    assert "max_tokens=2" in cut


def test_template_errors_are_shown(tmp_path: Path) -> None:
    engine = ScriptedEngine(toys.byte_level(tmp_path, chat_template=toys.MISTRAL))
    talk = Talk(engine, system="Be brief.")
    assert talk.type("Hi") == "\n"
    assert "roles must alternate" in talk.notes and "system, user" in talk.notes


# ---------------------------------------------------------------------- commands


def test_every_command_is_known(engine: ScriptedEngine) -> None:
    talk = Talk(engine)
    for usage in COMMANDS:
        talk.type(usage.split()[0])
        assert "there is no command" not in talk.notes
    talk.type("/foo bar")
    assert "there is no command '/foo'" in talk.notes and "/help" in talk.notes


def test_help_lists_them(engine: ScriptedEngine) -> None:
    out = Talk(engine).type("/help")
    assert all(usage in out and what in out for usage, what in COMMANDS.items())


def test_quit_leaves(engine: ScriptedEngine) -> None:
    assert Talk(engine).type("/quit", "Hi") == ""


def test_reset_keeps_the_system_message(engine: ScriptedEngine) -> None:
    engine.answers = [["ok"]]
    talk = Talk(engine, system="Be brief.")
    talk.type("Hi", "/reset")
    assert talk.chat.messages == [{"role": "system", "content": "Be brief."}]


def test_system_is_set_changed_and_removed(engine: ScriptedEngine) -> None:
    engine.answers = [["ok"], ["ok"]]
    talk = Talk(engine)
    talk.type("/system Be  brief.", "Hi", "/system Be long.")
    assert talk.chat.messages[0]["content"] == "Be long."
    assert talk.roles == ["system", "user", "assistant"]
    talk.type("/system")
    assert talk.roles == ["user", "assistant"]


def test_set_changes_what_the_engine_gets(engine: ScriptedEngine) -> None:
    engine.answers = [["ok"]]
    talk = Talk(engine)
    talk.type(
        "/set temperature 0.5", '/set stop ["END", "x"]', "/set seed 3", "/set seed none", "Hi"
    )
    assert engine.params == [SamplingParams(temperature=0.5, stop=("END", "x"))]
    assert "temperature 0.5\n" in talk.type("/set")


def test_set_refuses_in_words(engine: ScriptedEngine) -> None:
    talk = Talk(engine)
    talk.type("/set top_p 2", "/set heat 1", "/set temperature hot")
    assert "top_p=2: give a number in (0, 1]" in talk.notes
    assert "there is no parameter 'heat'" in talk.notes and "temperature" in talk.notes
    assert "temperature='hot'" in talk.notes
    assert talk.chat.params == SamplingParams(temperature=0.0)


def test_regex_holds_from_the_next_turn_until_it_is_taken_off(engine: ScriptedEngine) -> None:
    engine.answers = [["ok"]] * 4
    talk = Talk(engine)
    talk.type("/regex yes|no ", "Hi", "And?", "/regex", "Hi", "/regex a", "/schema", "Hi")
    assert [p.regex for p in engine.params] == ["yes|no ", "yes|no ", None, None]
    assert talk.notes.count("[answers are free]") == 2
    assert "[answers match yes|no ]" in talk.notes


def test_schema_is_read_from_a_file(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.answers = [["1"]] * 3
    file = tmp_path / "a schema.json"
    file.write_text('{"type": "integer"}')
    talk = Talk(engine)
    talk.type("/regex a", f"/schema {file}", "Hi", "/regex [0-9]", "Hi", "/schema", "Hi")
    assert [(p.regex, p.json_schema) for p in engine.params] == [
        (None, '{"type": "integer"}'),
        ("[0-9]", None),
        (None, None),
    ]
    assert f"by the schema in {file}]" in talk.notes


def test_a_bad_pattern_is_told_at_once_and_changes_nothing(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"type": "object", "uniqueItems": 3')
    engine.answers = [["ok"]]
    talk = Talk(engine)
    talk.type(
        "/regex yes|no", "/regex a(b", r"/regex (a)\1", f"/schema {tmp_path / 'bad.json'}",
        f"/schema {tmp_path / 'none'}", '/set regex "[z-a]"', "Hi",
    )  # fmt: skip
    assert engine.params == [SamplingParams(temperature=0.0, regex="yes|no")]
    told = talk.notes.splitlines()[1:]
    assert len(told) == 5
    for words, line in zip(
        ["position 1", "position 3", "JSON", "No such file", "position 1"], told, strict=True
    ):
        assert words in line


def test_verbose_tells_what_a_pattern_removed(tiny_model_dir: Path) -> None:
    from minisgl.engine.engine import Engine

    with Engine(str(tiny_model_dir), dtype="float32", device="cpu") as engine:
        talk = Talk(cast(Any, engine), verbose=True)
        talk.type("/regex [ab]{3}[.]", "Hi")
        answer = talk.chat.messages[-1]["content"]
        assert len(answer) == 4 and set(answer[:3]) <= {"a", "b"} and answer[3] == "."
        assert "% of the distribution" in talk.notes
        talk.type("/regex", "/set max_tokens 3", "Hi")
        assert "removed" not in talk.notes.splitlines()[-1]


def test_save_and_load(engine: ScriptedEngine, tmp_path: Path) -> None:
    engine.answers = [["世界"], ["ok"]]
    file = tmp_path / "a talk.json"
    talk = Talk(engine, system="Be brief.")
    talk.type("Hi", f"/save {file}")
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert saved == talk.chat.messages and "世界" in file.read_text(encoding="utf-8")
    other = Talk(engine)
    other.type(f"/load {file}", "More")
    assert other.chat.messages[:3] == saved and other.roles[3:] == ["user", "assistant"]


@pytest.mark.parametrize("text", ["{", "{}", '["Hi"]', '[{"role": "user"}]'])
def test_load_refuses_what_is_no_conversation(
    engine: ScriptedEngine, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="should be"):
        load_messages(file)
    engine.answers = [["ok"]]
    talk = Talk(engine)
    talk.type("Hi", f"/load {file}", f"/load {tmp_path / 'none'}", "/load", "/save")
    assert talk.roles == ["user", "assistant"]
    assert "No such file" in talk.notes and "/save needs a file" in talk.notes


def test_stats_and_verbose(engine: ScriptedEngine) -> None:
    engine.answers = [["a", "b"]]
    talk = Talk(engine, verbose=True)
    out = talk.type("/stats", "Hi", "/stats")
    assert "last answer: none yet" in out
    assert "(3 cached), 2 new; the first after" in out and "tokens/s" in out
    for line in (
        "engine: 9 requests, 3 running, 4 waiting",
        "prompts: 40 tokens, 10 (25%) of them cached",
        "answers: 6 tokens in 8 steps and 1.5 s (4.0 tokens/s), 5 retractions",
        "first token: 12.3 ms (p99 500.0 ms); step: 4.0 ms (p99 9.1 ms)",
        "KV pool: 100 slots: 60 free, 38 in the radix tree (20 locked), 2 of running requests",
    ):
        assert out.count(line + "\n") == 2
    assert "(3 cached), 2 new" in talk.notes


def test_tree(engine: ScriptedEngine) -> None:
    assert Talk(engine).type("/tree") == "(root)\n└── hello\n\n"


# ---------------------------------------------------------------------- lines and options


def test_history_outlives_the_program(tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    file = tmp_path / "cache" / "history"
    readline.clear_history()
    for line in ("first", "second"):
        with line_editing(file):
            readline.add_history(line)
        readline.clear_history()
    with line_editing(file):
        assert [readline.get_history_item(n) for n in (1, 2)] == ["first", "second"]
    readline.clear_history()


def test_without_readline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "readline", None)
    with line_editing(tmp_path / "history"):
        pass
    assert not (tmp_path / "history").exists()


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("argv", "stdin", "asked"),
    [
        (["--prompt", "Hi"], io.StringIO("unread"), "Hi"),
        (["--prompt", "Hi"], Keyboard(), "Hi"),
        ([], Keyboard("typed later"), None),
        ([], io.StringIO("Hi\nthere\n"), "Hi\nthere"),
        (["-"], io.StringIO("Hi"), "Hi"),
        (["--prompt", "-"], io.StringIO("Hi"), "Hi"),
        (["--prompt", "Sum up:", "-"], io.StringIO("a\nb\n"), "Sum up:\n\na\nb"),
    ],
)
def test_where_the_question_comes_from(argv: list[str], stdin: io.StringIO, asked: Any) -> None:
    assert module.question(module.parser().parse_args(argv), stdin) == asked


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--top-p", "2"], "top_p=2.0"),
        (["--max-tokens", "-1"], "max_tokens=-1"),
        (["--regex", "a(b"], "position 1"),
        (["--json-schema", "./nowhere.json"], "No such file"),
        (["--json-schema", "pyproject.toml"], "JSON"),
        (["--json-schema", "pyproject.toml", "--regex", "a"], "give one"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--prompt", " "], "the prompt is empty"),
        ([], "the prompt is empty"),
    ],
)
def test_wrong_options_are_refused_before_loading(
    argv: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as leaving:
        main(argv)
    assert leaving.value.code == 2
    assert words in capsys.readouterr().err


def test_no_such_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "./nowhere", "--prompt", "Hi"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "nowhere" in err
    assert main(["--trace", "./nowhere/trace.json", "--prompt", "Hi"]) == 1
    assert capsys.readouterr().err.startswith("error: trace='./nowhere/trace.json' can't be")


def test_ctrl_c_ends_one_answer_with_130(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Opened:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> ScriptedEngine:
            return engine

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("minisgl.engine.engine.Engine", Opened)
    engine.answers = [["It is", KeyboardInterrupt(), ""], ["fine"], [KeyboardInterrupt()]]
    assert main(["--prompt", "Hi"]) == 130
    assert main(["--prompt", "Hi"]) == 0
    assert main(["--prompt", "Hi", "--system", "Be brief."]) == 130
    assert capsys.readouterr().out == "It is\nfine\n"


# ---------------------------------------------------------------------- the real engine


def test_one_answer_is_all_that_stdout_gets(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from minisgl.engine.engine import Engine

    options = ["--model", str(tiny_model_dir), "--dtype", "float32", "--device", "cpu"]
    options += ["--temperature", "0", "--max-tokens", "12", "--prompt", "Hi there"]
    assert main([*options, "--trace", str(tmp_path / "trace.json")]) == 0
    out, err = capsys.readouterr()
    names = [e["name"] for e in json.loads((tmp_path / "trace.json").read_text())]
    assert {"prefill", "decode", "forward"} <= set(names)
    with Engine(str(tiny_model_dir), dtype="float32", device="cpu") as engine:
        ids = engine.chat_template.encode(
            [{"role": "user", "content": "Hi there"}], engine.tokenizer
        )
        params = SamplingParams(temperature=0.0, max_tokens=12, top_p=0.9)
        answer = engine.generate(ids, params)
    assert out == answer.text.removesuffix("\n") + "\n"
    assert err in ("", "[cut off after max_tokens=12]\n")


def test_the_one_answer_can_follow_a_pattern(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(tiny_model_dir), "--device", "cpu", "--prompt", "Yes or no?"]
    assert main([*options, "--regex", "(yes|no), (sir|madam)"]) == 0
    assert re.fullmatch("(yes|no), (sir|madam)\n", capsys.readouterr().out)
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "green"]}')
    assert main([*options, "--json-schema", str(schema)]) == 0
    assert json.loads(capsys.readouterr().out) in ("red", "green")


def test_the_second_turn_reuses_the_first(tiny_model_dir: Path) -> None:
    from minisgl.engine.engine import Engine

    with Engine(str(tiny_model_dir), dtype="float32", device="cpu") as engine:
        chat = Chat(engine, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
                    out=io.StringIO(), notices=io.StringIO())  # fmt: skip
        chat.answer("What is a radix tree?")
        assert chat.last is not None and chat.last.cached_tokens == 0
        first = chat.last.prompt_tokens
        chat.answer("And a token?")
        assert chat.last.cached_tokens is not None and chat.last.cached_tokens >= first
        command(chat, "/stats")
        command(chat, "/tree")
        engine.check()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine of a LLaVA-1.5."""
    from minisgl.engine.engine import Engine

    path = make_tiny_llava(tmp_path_factory.mktemp("llava"), architecture=LLAVA)
    with Engine(str(path), dtype="float32", device="cpu") as engine:
        yield engine


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    """A picture in a file whose name has a space."""
    path = tmp_path / "a cat.png"
    picture(1).save(path)
    return path


class TestPictures:
    def test_are_what_the_next_question_is_about(self, seeing: Any, cat: Path) -> None:
        """And they stay in the conversation, so the second answer finds them in the cache."""
        talk = Talk(seeing)
        talk.chat.params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        talk.type(f"/image {cat}", "What is it?", "Sure?")
        assert "[a cat.png (40 x 30) goes with your next question]" in talk.notes
        first, answer, second = talk.chat.messages[:3]
        parts = [{"type": "image", "path": str(cat)}, {"type": "text", "text": "What is it?"}]
        assert first == {"role": "user", "content": parts}
        assert second == {"role": "user", "content": "Sure?"}
        assert talk.chat.last is not None and talk.chat.last.prompt_tokens > 16
        assert talk.chat.last.cached_tokens is not None and talk.chat.last.cached_tokens > 16

        from minisgl import Prompt

        ids = seeing.chat_template.encode([first], seeing.tokenizer)
        expected = seeing.generate(Prompt(ids, cat), talk.chat.params)
        assert answer["content"] == expected.text

    def test_a_bad_one_then_a_good_one(self, seeing: Any, cat: Path) -> None:
        bad = cat.with_name("bad.png")
        bad.write_bytes(cat.read_bytes()[:99])
        talk = Talk(seeing)
        talk.chat.params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        talk.type(f"/image {bad}", "/image none.png", f"/video {cat}", f"/image {cat}", "What?")
        notes = talk.notes.splitlines()
        assert "bad.png': broken, or cut short" in notes[0] and "no such file" in notes[1]
        assert "this model reads text and images, and no videos" in notes[2]
        assert len(talk.chat.messages[0]["content"]) == 2

    def test_alone_it_takes_them_back(self, seeing: Any, cat: Path) -> None:
        talk = Talk(seeing)
        talk.chat.params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        talk.type(f"/image {cat}", f"/image {cat}", "/image", "Hi")
        assert talk.chat.messages[0]["content"] == "Hi"
        talk.type("/reset", f"/image {cat}", f"/image {cat}", "Hi")
        assert [part["type"] for part in talk.chat.messages[0]["content"]] == [
            "image", "image", "text",
        ]  # fmt: skip

    def test_stay_for_the_next_question_if_this_one_is_refused(
        self, seeing: Any, cat: Path
    ) -> None:
        talk = Talk(seeing)
        talk.chat.params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        talk.type(*[f"/image {cat}"] * 70, "What?")  # 70 times 16 tokens
        assert "an image of 16 tokens" in talk.notes and talk.chat.messages == []
        talk.type("/image", f"/image {cat}", "What?")
        assert len(talk.chat.messages[0]["content"]) == 2

    def test_a_saved_conversation_shows_them_again(self, seeing: Any, cat: Path) -> None:
        file = cat.with_name("talk.json")
        talk, other = Talk(seeing), Talk(seeing)
        for each in (talk, other):
            each.chat.params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        talk.type(f"/image {cat}", "What?", f"/save {file}", "Sure?")
        other.type(f"/load {file}", "Sure?")
        assert other.chat.messages == talk.chat.messages
        before = other.chat.messages
        cat.unlink()
        other.type(f"/load {file}")
        assert "no such file" in other.notes and other.chat.messages == before
        file.write_text('[{"role": "user", "content": [{"type": "image"}]}]')
        with pytest.raises(ValueError, match="is not a conversation"):
            load_messages(file)

    def test_are_refused_by_a_model_that_reads_text(
        self, engine: ScriptedEngine, cat: Path
    ) -> None:
        engine.answers = [["ok"]]
        talk = Talk(engine)
        talk.type(f"/image {cat}", f"/video {cat}", "Hi")
        assert talk.notes.count("this model reads text only, and no ") == 2
        assert talk.roles == ["user", "assistant"]


# The child takes the pseudo-terminal as its own, so that a typed Ctrl-C reaches it as SIGINT.
IN_A_TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "chat"
runpy.run_module("minisgl.chat", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_in_a_terminal(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Keys as a terminal sends them: a question, Ctrl-C, a command, Ctrl-D."""
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, "--model", str(tiny_model_dir), "--device", "cpu"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env=os.environ | {"MINISGL_CACHE": str(tmp_path), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    screen = b""

    def until(is_there: Callable[[bytes], bool]) -> bytes:
        nonlocal screen
        begun, deadline = len(screen), time.monotonic() + 120
        while not is_there(screen[begun:]):
            assert time.monotonic() < deadline, screen
            if select.select([ours], [], [], 1)[0]:
                screen += os.read(ours, 4096)
        return screen[begun:]

    try:
        until(lambda new: new.endswith(b"> "))
        os.write(ours, b"Tell me everything\n")
        until(lambda new: len(new) > len(b"Tell me everything\r\n"))  # it has begun to speak
        os.write(ours, b"\x03")
        until(lambda new: b"stopped]" in new or b"Ctrl-D leaves" in new)
        os.write(ours, b"/stats\n")
        assert b"engine: 1 requests" in until(lambda new: b"radix tree" in new)
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "Tell me everything" in (tmp_path / "chat_history").read_text()
