"""SGLang's own API: /generate in the conventions that its clients read it by."""

from __future__ import annotations

import base64
import math
from io import BytesIO
from itertools import pairwise
from typing import Any

import PIL.Image
import pytest

from minisgl import Completion, SamplingParams
from minisgl.engine.output import TokenLogprob
from minisgl.serve.native_plan import Asking, NativePlan
from minisgl.serve.native_reply import Reply
from minisgl.serve.native_types import GenerateRequest, NativeParams
from tests.serve.common import Running, events
from tests.serve.test_openai import captured

TEXT = "The first token is slow, the next"


def generate(server: Running, **body: Any) -> Any:
    answer = server.post("/generate", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def greedy(**more: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": 6, **more}


class TestGenerate:
    def test_text_and_counts_are_the_engine_s(self, server: Running) -> None:
        done = server.engine.generate(TEXT, SamplingParams(temperature=0, max_tokens=6))
        said = generate(server, text=TEXT, sampling_params=greedy(), rid="me")
        assert said["text"] == done.text
        meta = said["meta_info"]
        assert meta == {
            "id": "me",
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": done.completion_tokens,
            "cached_tokens": done.prompt_tokens - 1,
            "completion_tokens_wo_jump_forward": done.forward_passes,
            "finish_reason": {"type": "length", "length": 6},
        }

    def test_batches_ids_and_n(self, server: Running) -> None:
        ids = server.engine.tokenizer.encode(TEXT)
        one = generate(server, text=TEXT, sampling_params=greedy())["text"]
        two = generate(server, text="Once", sampling_params=greedy())["text"]
        assert generate(server, input_ids=ids, sampling_params=greedy())["text"] == one
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"text": [TEXT, "Once"]}, [one, two]),
            ({"text": [TEXT]}, [one]),  # a batch of one is a batch
            ({"input_ids": [ids]}, [one]),
            ({"text": TEXT, "sampling_params": greedy(n=2)}, [one, one]),
            ({"text": [TEXT, "Once"], "sampling_params": greedy(n=2)}, [one, one, two, two]),
            ({"text": [TEXT, "Once"], "sampling_params": [greedy(), greedy()]}, [one, two]),
        ]
        for body, texts in cases:
            said = generate(server, **{"sampling_params": greedy(), **body})
            assert [each["text"] for each in said] == texts
        said = generate(server, text=[TEXT, "Once"], rid=["a", "b"], sampling_params=greedy(n=2))
        assert [each["meta_info"]["id"] for each in said] == ["a", "a", "b", "b"]

    def test_what_ended_an_answer(self, server: Running) -> None:
        text = generate(server, text=TEXT, sampling_params=greedy())["text"]
        said = generate(server, text=TEXT, sampling_params=greedy(stop=text[2]))
        assert said["meta_info"]["finish_reason"] == {"type": "stop", "matched": text[2]}
        said = generate(server, text=TEXT, sampling_params=greedy(regex="yes"))
        assert said["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
        assert said["meta_info"]["completion_tokens_wo_jump_forward"] == 0

    def test_off_comes_in_many_forms(self, server: Running) -> None:
        plain = generate(server, text=TEXT, sampling_params=greedy())["text"]
        for stop in (None, "", [], [""]):
            said = generate(server, text=TEXT, sampling_params=greedy(stop=stop))
            assert said["text"] == plain

    def test_a_stream_is_cumulative(self, server: Running) -> None:
        whole = generate(server, text=TEXT, sampling_params=greedy())
        answer = server.post(
            "/generate", {"text": TEXT, "sampling_params": greedy(), "stream": True}
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        parts = events(answer.text)
        texts = [part["text"] for part in parts]
        assert all(b.startswith(a) for a, b in pairwise(texts))
        assert texts[-1] == whole["text"]
        counts = [part["meta_info"]["completion_tokens"] for part in parts]
        assert counts == sorted(counts) and counts[-1] == 6
        ends = [part["meta_info"]["finish_reason"] for part in parts]
        assert ends[:-1] == [None] * (len(parts) - 1) and ends[-1]["type"] == "length"
        assert {part["meta_info"]["prompt_tokens"] for part in parts} == {
            whole["meta_info"]["prompt_tokens"]
        }

    def test_a_stream_of_many_says_which(self, server: Running) -> None:
        body = {"text": [TEXT, "Once"], "sampling_params": greedy(n=2), "stream": True}
        last = {part["index"]: part["text"] for part in events(server.post("/generate", body).text)}
        whole = generate(server, text=[TEXT, "Once"], sampling_params=greedy(n=2))
        assert [last[i] for i in range(4)] == [each["text"] for each in whole]

    def test_the_old_client_s_int(self, server: Running) -> None:
        said = generate(server, text=TEXT, sampling_params=greedy(dtype="int", stop=[" ", "\n"]))
        int(said["text"])


class TestLogprobs:
    def scored(self, server: Running, **body: Any) -> dict[str, Any]:
        meta: dict[str, Any] = generate(
            server,
            **{"text": TEXT, "return_logprob": True, "sampling_params": {"max_new_tokens": 0}},
            **body,
        )["meta_info"]
        return meta

    def test_of_a_prompt_from_the_token_after_the_start(self, server: Running) -> None:
        ids = server.engine.tokenizer.encode(TEXT)
        params = SamplingParams(max_tokens=0, prompt_logprobs_from=0)
        done = server.engine.generate(ids, params)
        known = [each and each.logprob for each in done.prompt_logprobs or ()]
        for start in range(len(ids)):
            meta = self.scored(server, logprob_start_len=start)
            first = start + 1 if start else 0  # 0 begins with the null of the first token
            told = meta["input_token_logprobs"]
            assert [token for _, token, _ in told] == ids[first:]
            assert [lp for lp, _, _ in told] == pytest.approx(known[first:], abs=1e-4)
            assert meta["prompt_logprob"] == pytest.approx(known[start + 1 :], abs=1e-4)
            if start < len(ids) - 1:
                mean = sum(meta["prompt_logprob"]) / len(meta["prompt_logprob"])
                assert meta["normalized_prompt_logprob"] == pytest.approx(mean)
            else:
                assert meta["normalized_prompt_logprob"] is None and told == []

    def test_nothing_generated_is_counted_or_shown(self, server: Running) -> None:
        for top in (0, 3):
            said = generate(
                server, text=TEXT, return_logprob=True, top_logprobs_num=top,
                sampling_params={"max_new_tokens": 0},
            )  # fmt: skip
            meta = said["meta_info"]
            assert said["text"] == "" and meta["completion_tokens"] == 0
            assert meta["finish_reason"] == {"type": "length", "length": 0}
            assert meta["output_token_logprobs"] == [] == meta["token_logprob"]
            assert meta["output_token_logprobs_length"] == 0
        done = server.engine.generate(TEXT, SamplingParams(max_tokens=1, logprobs=3))
        assert done.logprobs is not None
        (top_tokens,) = meta["output_top_logprobs"]  # what could come next
        assert [token for _, token, _ in top_tokens] == [i for i, _ in done.logprobs[0].top]
        assert [lp for lp, _, _ in top_tokens] == pytest.approx(
            [lp for _, lp in done.logprobs[0].top], abs=1e-4
        )

    def test_of_an_answer_in_both_families_of_fields(self, server: Running) -> None:
        done = server.engine.generate(TEXT, SamplingParams(temperature=0, max_tokens=6, logprobs=2))
        meta = generate(
            server, text=TEXT, return_logprob=True, top_logprobs_num=2,
            return_text_in_logprobs=True, sampling_params=greedy(),
        )["meta_info"]  # fmt: skip
        told = done.logprobs or []
        texts = [
            server.engine.tokenizer.token_bytes(each.token_id).decode(errors="replace")
            for each in told
        ]
        assert meta["output_token_logprobs"] == [
            [each.logprob, each.token_id, text] for each, text in zip(told, texts, strict=True)
        ]
        assert meta["token_logprob"] == [[each.token_id, each.logprob] for each in told]
        assert [len(top) for top in meta["output_top_logprobs"]] == [2] * 6
        # Output log-probabilities alone don't ask for the prompt's, which would defeat the cache.
        assert meta["input_token_logprobs"] == [] and meta["cached_tokens"] > 0

    def test_texts_only_if_asked(self, server: Running) -> None:
        assert {text for *_, text in self.scored(server)["input_token_logprobs"]} == {None}
        meta = self.scored(server, return_text_in_logprobs=True)
        assert "".join(text for *_, text in meta["input_token_logprobs"]) == TEXT

    def test_a_stream_tells_them_too(self, server: Running) -> None:
        body = {"text": TEXT, "sampling_params": greedy(), "return_logprob": True}
        whole = generate(server, **body, logprob_start_len=2)["meta_info"]
        parts = events(
            server.post("/generate", {**body, "logprob_start_len": 2, "stream": True}).text
        )
        told: list[Any] = []
        for part in parts:  # each has those of its new tokens
            told += part["meta_info"]["output_token_logprobs"]
            assert len(told) == part["meta_info"]["completion_tokens"]
            assert len(told) == part["meta_info"]["output_token_logprobs_length"]
        last = parts[-1]["meta_info"]["input_token_logprobs"]
        for found, known in (
            (told, whole["output_token_logprobs"]),
            (last, whole["input_token_logprobs"]),
        ):
            assert [token for _, token, _ in found] == [token for _, token, _ in known]

    def test_minus_infinity_is_null(self) -> None:
        told = [TokenLogprob(5, -math.inf, ((6, -math.inf), (7, -1.0)))]
        done = Completion("a", [5], "length", None, 2, 0, 1, logprobs=told, prompt_logprobs=[*told])
        meta = Reply("r", Asking([4, 5], 1, False), None).whole(done)["meta_info"]
        assert meta["output_token_logprobs"] == [[None, 5, None]]
        assert meta["output_top_logprobs"] == [[[None, 6, None], [-1.0, 7, None]]]
        assert meta["prompt_logprob"] == [None] and meta["normalized_prompt_logprob"] is None


PARAMS = {  # a field of sampling_params: its value, and what it becomes
    "max_new_tokens": (3, {"max_tokens": 3}),
    "min_new_tokens": (1, {"min_tokens": 1}),
    "n": (2, {"n": 2}),
    "stop": (["a", "b"], {"stop": ("a", "b")}),
    "stop_token_ids": ([9], {"stop_token_ids": (9,)}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "top_k": (3, {"top_k": 3}),
    "min_p": (0.1, {"min_p": 0.1}),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
    "presence_penalty": (0.5, {"presence_penalty": 0.5}),
    "repetition_penalty": (1.2, {"repetition_penalty": 1.2}),
    "logit_bias": ({"7": -5.0}, {"logit_bias": ((7, -5.0),)}),
    "seed": (4, {"seed": 4}),
    "ignore_eos": (True, {"ignore_eos": True}),
    "regex": ("a+", {"regex": "a+"}),
    "json_schema": ('{"type": "null"}', {"json_schema": '{"type": "null"}'}),
    "json_space": (1, {"json_space": 1}),
    "skip_special_tokens": (False, {"skip_special_tokens": False}),
    "no_stop_trim": (True, {"no_stop_trim": True}),
    "stop_regex": (["a+", "b"], {"stop_regex": ("a+", "b")}),
    "namespace": ("me", {"namespace": "me"}),
}


def test_every_sampling_param_reaches_the_engine(server: Running) -> None:
    others = {"dtype", "spaces_between_special_tokens"}
    assert set(NativeParams.model_fields) - others == set(PARAMS)

    def sent(**params: Any) -> SamplingParams:
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 2, **params}}
        return captured(server, "/generate", body)

    plain = sent()
    for name, (value, wanted) in PARAMS.items():
        asked = sent(**{name: value})
        changed = {
            field: getattr(asked, field)
            for field in vars(asked)
            if getattr(asked, field) != getattr(plain, field) or field in wanted
        }
        assert changed == wanted, name
    assert sent(stop_regex=[], spaces_between_special_tokens=True) == plain
    assert sent(dtype="bool").regex == "(True|False)"
    assert captured(server, "/generate", {"text": "Once"}).max_tokens == 128


class TestImages:
    def plan(self, server: Running, **body: Any) -> Any:
        return NativePlan(server.desk, GenerateRequest.model_validate(body)).read()

    def test_one_for_a_batch_is_one_for_each(self, server: Running) -> None:
        data = BytesIO()
        PIL.Image.new("RGB", (2, 2), "red").save(data, "PNG")
        encoded = base64.b64encode(data.getvalue()).decode()
        asked = self.plan(server, text=["a", "b"], image_data=encoded)
        assert [len(prompt.images) for prompt, _ in asked] == [1, 1]
        assert asked[0][0].images[0] == asked[1][0].images[0]
        asked = self.plan(server, text=["a", "b", "c"], image_data=[encoded, None, [encoded] * 2])
        assert [len(getattr(prompt, "images", ())) for prompt, _ in asked] == [1, 0, 2]
        asked = self.plan(server, text="a", image_data=[encoded, encoded])
        assert len(asked[0][0].images) == 2

    @pytest.mark.parametrize("kind", ["JPEG", "PNG"])
    def test_the_new_client_s_videos(self, server: Running, kind: str) -> None:
        frames = b""
        for colour in ("red", "green", "blue"):
            data = BytesIO()
            PIL.Image.new("RGB", (16, 8), colour).save(data, kind)
            frames += data.getvalue()
        video = "video:" + base64.b64encode(frames).decode()
        ((prompt, _),) = self.plan(server, text="a", image_data=video)
        (found,) = prompt.images
        assert found.is_video and [frame.size for frame in found.frames] == [(16, 8)] * 3

    def test_what_may_not_be_read(self, server: Running) -> None:
        for image, why in (
            ("/etc/hostname", "base64"),
            ("http://127.0.0.1/x.png", "not allowed"),
            ("video:!", "not base64"),
        ):
            answer = server.post("/generate", {"text": "a", "image_data": image})
            assert answer.status_code == 400 and why in answer.json()["error"]["message"]


class TestAbout:
    def test_what_clients_ask_first(self, server: Running) -> None:
        for path in ("/get_model_info", "/model_info"):
            info = server.get(path).json()
            assert info["model_path"] == server.engine.config.model and info["is_generation"]
        for path in ("/get_server_info", "/get_server_args", "/server_info"):
            info = server.get(path).json()
            assert info["kv_tokens"] == 4096 and info["api_key"] is None
            assert info["stats"]["pool_slots"] == 4096

    def test_health(self, server: Running) -> None:
        assert server.get("/health").status_code == 200
        before = server.engine.stats().output_tokens
        assert server.get("/health_generate").status_code == 200
        assert server.engine.stats().output_tokens == before + 1

    def test_flush(self, server: Running) -> None:
        generate(server, text=TEXT, sampling_params=greedy())
        for method in ("GET", "POST"):
            assert server.http.request(method, "/flush_cache").status_code == 200
            assert server.engine.stats().tree_slots == 0
        said = generate(server, text=TEXT, sampling_params=greedy())
        assert said["meta_info"]["cached_tokens"] == 0

    def test_branches_need_no_route_to_be_appended(self, server: Running) -> None:
        body = {"src_rids": ["a", "b"], "dst_rid": "c"}
        answer = server.post("/concate_and_append_request", body)
        assert (answer.status_code, answer.json()) == (200, {})
        assert server.post("/concate_and_append_request", {"src_rids": []}).status_code == 400
