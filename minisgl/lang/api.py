"""The words of the language: `@function`, `gen`, `select`, roles, images, and what they run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from minisgl.lang import ir
from minisgl.lang.backends import as_backend
from minisgl.lang.choices import ChoicesSamplingMethod, token_length_normalized
from minisgl.lang.config import global_config
from minisgl.lang.dtypes import reading_of
from minisgl.lang.function import Function
from minisgl.lang.settings import Settings, settings
from minisgl.lang.speculative import checked_tokens
from minisgl.lang.state import ProgramState

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

P = ParamSpec("P")
R = TypeVar("R")


@overload
def function(func: Callable[Concatenate[ProgramState, P], R]) -> Function[P, R]: ...
@overload
def function(
    *, num_api_spec_tokens: int | None = None, api_num_spec_tokens: int | None = None
) -> Callable[[Callable[Concatenate[ProgramState, P], R]], Function[P, R]]: ...
def function(
    func: Any = None,
    *,
    num_api_spec_tokens: int | None = None,
    api_num_spec_tokens: int | None = None,
) -> Any:
    """Make a program of a function whose first argument is its state.

    @function
    def qa(s, question):
        s += "Q: " + question + "\\nA:" + gen("answer", stop="\\n")

    Args:
        num_api_spec_tokens: `@function(num_api_spec_tokens=64)` asks the model for at least so many
            tokens at a time, beyond the first gen's end, and answers later gens out of them (see
            `minisgl.lang.speculative`); for models behind an API.
        api_num_spec_tokens: its name in SGLang's first versions.

    Raises:
        ValueError: no number of tokens, or no function for a program.
    """
    tokens = api_num_spec_tokens if num_api_spec_tokens is None else num_api_spec_tokens
    if func is None:
        return partial(Function, num_api_spec_tokens=checked_tokens(tokens))
    return Function(func, num_api_spec_tokens=tokens)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    *,
    dtype: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    **others: Unpack[Settings],
) -> ir.Gen | ir.Select:
    """The model goes on from here.  The answer joins the text and becomes the variable `name`.

    What is not given is as `run` says, and else as in `SamplingParams`, with 128 for `max_tokens`.

    Args:
        name: of the variable; None: `gen_0`, `gen_1`, ... in the order of the program.
        max_tokens: None, as for the others: not given.  Until the context is full: where the
            program is run, `run(max_tokens=None)`.
        n: answers; the variable is a list then, and the text goes on with the first.
        dtype: int, float, bool, str, Literal[...], an Enum, a dataclass or a pydantic model: the
            answer is such a value (see `minisgl.lang.dtypes`).
        choices: the answer is one of them: a `select`, at temperature 0 unless one is given here.
        regex: the answer matches this pattern.
        json_schema: the answer is JSON by this schema: a dict, JSON text, a dataclass or a pydantic
            model; the variable is its text.
        **others: the other fields of `SamplingParams`: temperature, top_p, top_k, min_p, seed,
            frequency_penalty, presence_penalty, repetition_penalty, stop_regex, ...; and SGLang's
            return_logprob, top_logprobs_num, logprob_start_len.

    Raises:
        ValueError: a value that is not allowed, or values that don't go together.
        TypeError: an unknown name.
    """
    given = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "regex": regex,
        "json_schema": json_schema,
        **others,
    }
    _check_patterns(regex, others.get("stop_regex"))
    given = {name: value for name, value in given.items() if value is not None}
    if choices is not None:
        return _choice(name, choices, choices_method, dtype, given)
    if choices_method is not None:
        raise ValueError("choices_method: give choices to choose among, too")
    if dtype is None:
        return ir.Gen(name, MappingProxyType(settings(given)))
    if "regex" in given or "json_schema" in given:
        raise ValueError("dtype is a pattern itself: give it, or regex, or json_schema")
    reading = reading_of(dtype)
    asked = settings({**given, **reading.settings})
    if reading.stop:
        own = asked.get("stop", ())
        asked["stop"] = (*((own,) if isinstance(own, str) else own), *reading.stop)
    return ir.Gen(name, MappingProxyType(asked), reading.parse)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    *,
    stop: str | Sequence[str] | None = None,
    **others: Unpack[Settings],
) -> ir.Gen | ir.Select:
    """`gen` of a whole number, at most 18 digits; the variable is its text."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **others)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    *,
    stop: str | Sequence[str] | None = None,
    **others: Unpack[Settings],
) -> ir.Gen | ir.Select:
    """`gen` of a JSON string, quotes and all, of at most 100 characters."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **others)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
    *,
    seed: int | None = None,
) -> ir.Select:
    """The choice that the model finds likeliest.  It joins the text and becomes `name`.

    Args:
        name: of the variable; None: `select_0`, `select_1`, ... in the order of the program.
        choices: one or more, none of them empty.
        temperature: 0 takes the best, and of equals the first; above it, choices are drawn by
            softmax(scores / temperature).
        choices_method: what "likeliest" means, see `minisgl.lang.choices`.
        seed: of the drawing; the same seed draws the same again.

    Raises:
        ValueError: no choices, an empty one, or a temperature that is none.
    """
    if isinstance(choices, str) or not choices:
        raise ValueError(f"choices={choices!r}: give a list of one or more texts")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise ValueError(f"choice {choice!r}: give texts that are not empty")
    settings({"temperature": temperature, "seed": seed})  # the same values are allowed
    return ir.Select(name, tuple(choices), choices_method, temperature, seed)


def image(source: Any) -> ir.Image:
    """A picture: a path, an http(s) or data: URL, base64, the bytes of a file, a PIL image or an
    array."""
    return ir.Image(source)


def video(
    source: Any,
    num_frames: int | None = None,
    *,
    fps: float | None = None,
    indices: Sequence[int] | None = None,
) -> ir.Video:
    """Frames of a video: a file, in the forms of `image`, or a list of frames.

    Args:
        source: see `minisgl.media.Video`.
        num_frames: so many, evenly from the first on.
        fps: so many a second.
        indices: these.

    Raises:
        ValueError: more than one of the three, or a number that can't be.
    """
    given = [value for value in (num_frames, fps, indices) if value is not None]
    if len(given) > 1:
        raise ValueError("num_frames, fps and indices: give one of them")
    if num_frames is not None and (
        isinstance(num_frames, bool) or not isinstance(num_frames, int) or num_frames < 1
    ):
        raise ValueError(f"num_frames={num_frames!r}: give a whole number of at least 1")
    return ir.Video(source, num_frames, fps, None if indices is None else tuple(indices))


def role(name: str, value: object = "") -> ir.Chain:
    """`value` said in a role; what comes before and after is the model's own chat template's."""
    return ir.Chain((ir.RoleBegin(name), *ir.nodes(value), ir.RoleEnd(name)))


def system(value: object = "") -> ir.Chain:
    """`role("system", value)`."""
    return role("system", value)


def user(value: object = "") -> ir.Chain:
    """`role("user", value)`."""
    return role("user", value)


def assistant(value: object = "") -> ir.Chain:
    """`role("assistant", value)`."""
    return role("assistant", value)


def system_begin() -> ir.RoleBegin:
    """The system begins to speak."""
    return ir.RoleBegin("system")


def system_end() -> ir.RoleEnd:
    """The system has spoken."""
    return ir.RoleEnd("system")


def user_begin() -> ir.RoleBegin:
    """The user begins to speak."""
    return ir.RoleBegin("user")


def user_end() -> ir.RoleEnd:
    """The user has spoken."""
    return ir.RoleEnd("user")


def assistant_begin() -> ir.RoleBegin:
    """The assistant begins to speak."""
    return ir.RoleBegin("assistant")


def assistant_end() -> ir.RoleEnd:
    """The assistant has spoken."""
    return ir.RoleEnd("assistant")


def set_default_backend(backend: Any) -> None:
    """What programs run on if they name no backend: an `Engine`, a `Runtime`, another backend, or
    None for the embedded model, loaded when it is first needed."""
    global_config.default_backend = None if backend is None else as_backend(backend)


def flush_cache(backend: Any = None) -> bool:
    """Forget every cached prefix; False (and nothing done) while requests are running."""
    return as_backend(backend).flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """What the backend tells about itself: its model, and what it has done."""
    return as_backend(backend).info()


get_server_args = get_server_info  # its name in SGLang's first versions


def _check_patterns(regex: str | None, stop_regex: str | Sequence[str] | None) -> None:
    """Compiled here, so that the line that wrote them is told; the engine finds them compiled."""
    stops = [stop_regex] if isinstance(stop_regex, str) else stop_regex or ()
    if not isinstance(regex, str) and not stops:
        return
    from minisgl.fsm import compile_regex  # with numpy, which a program without one can spare
    from minisgl.fsm.search import compile_search

    if isinstance(regex, str):
        compile_regex(regex)
    for pattern in stops:
        compile_search(pattern)


def _choice(
    name: str | None,
    choices: Sequence[str],
    method: ChoicesSamplingMethod | None,
    dtype: Any,
    given: dict[str, Any],
) -> ir.Select:
    """What `gen(choices=...)` says; of the settings, only those that a select has make sense."""
    others = sorted(set(given) - {"temperature", "seed"}) + ["dtype"] * (dtype is not None)
    if others:
        raise ValueError(f"choices with {others[0]}: the answer is one of the choices as it is")
    return select(name, choices, choices_method=method or token_length_normalized, **given)
