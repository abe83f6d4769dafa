"""Chats and completions over real sockets, whole and streamed, in the shapes that clients read."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI

from inference_node.server.app import Options
from tests.inference_node.engine.conftest import FACTS, says
from tests.inference_node.engine.toy import END, PLAIN_TEMPLATE, ids
from tests.inference_node.server.conftest import Served

Serve = Callable[..., Served]

THINKING = "Let me see.\n</think>\n\nHello there."
CALL = '<tool_call>\n<function=look>\n<parameter=place>\nthe "old" town\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>'  # noqa: E501
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}


def client(served: Served) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def chunks(reply: httpx.Response) -> list[dict[str, Any]]:
    """The data of a stream's events, which end with [DONE]."""
    lines = [line for line in reply.text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_chat_is_answered_with_its_thought_apart(serve: Serve) -> None:
    body = serve(THINKING).answer("Hi")
    message = body["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello there.", "reasoning_content": "Let me see."}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(ids(THINKING)) + 1
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_a_stream_put_together_is_the_whole_answer(serve: Serve) -> None:
    served = serve(THINKING)
    whole = served.answer("Hi", seed=1)["choices"][0]["message"]
    pieces = chunks(served.chat("Hi", seed=1, stream=True))
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0] == {"role": "assistant", "content": ""}
    for name in ("content", "reasoning_content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == whole[name]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces][-1] == "stop"
    assert len({piece["id"] for piece in pieces}) == 1


def test_usage_in_a_stream_comes_with_empty_choices_and_only_when_asked_for(serve: Serve) -> None:
    """engines.md 6.2: clients index choices[0] only after looking."""
    served = serve(THINKING)
    asked = chunks(served.chat("Hi", stream=True, stream_options={"include_usage": True}))
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == len(ids(THINKING)) + 1
    assert all(piece["choices"] for piece in chunks(served.chat("Hi", stream=True)))


def test_the_openai_package_streams(serve: Serve) -> None:
    served = serve(THINKING)
    with client(served).chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "Hi"}], stream=True
    ) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "Hello there."


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_package_calls_tools(serve: Serve, stream: bool) -> None:
    served = serve("I look.\n</think>\n\n" + CALL)
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "Where?"}], "tools": [LOOK]}
    if stream:
        with client(served).chat.completions.stream(**asked) as events:
            for _ in events:
                pass
            completion = events.get_final_completion()
    else:
        completion = client(served).chat.completions.create(**asked)
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name == "look"
    assert json.loads(call.function.arguments) == {"place": 'the "old" town', "days": 3}
    assert call.id.startswith("call_")
    assert not choice.message.content


def test_the_openai_package_parses_json_schema(serve: Serve) -> None:
    from pydantic import BaseModel

    class Town(BaseModel):
        name: str
        inhabitants: int

    served = serve('hm\n</think>\n\n{"name": "Ulm", "inhabitants": 5} and more that no grammar allows')
    completion = client(served).chat.completions.parse(
        model="scripted", messages=[{"role": "user", "content": "A town."}], response_format=Town, max_tokens=200
    )
    assert completion.choices[0].message.parsed == Town(name="Ulm", inhabitants=5)


def test_a_tool_choice_is_obeyed_whatever_the_model_says(serve: Serve) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    for choice, name in (("required", "look"), ({"type": "function", "function": {"name": "other"}}, "other")):
        served = serve(
            "hm\n</think>\n\n" + CALL.replace("look", name).replace("<parameter=place>", "<parameter=place>")
        )
        body = served.answer("Hi", tools=[LOOK, other], tool_choice=choice, max_tokens=400)
        calls = body["choices"][0]["message"]["tool_calls"]
        assert {call["function"]["name"] for call in calls} == {name}
    served = serve("hm\n</think>\n\nI would " + CALL)
    message = served.answer("Hi", tools=[LOOK], tool_choice="none", max_tokens=100)["choices"][0]["message"]
    assert "tool_calls" not in message


def test_a_response_format_is_obeyed_whatever_the_model_says(serve: Serve) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    served = serve("hm\n</think>\n\nSure! Here is your JSON: {}")
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    text = served.answer("Hi", response_format=format_, max_tokens=300)["choices"][0]["message"]["content"]
    Draft202012Validator(schema).validate(json.loads(text))


def test_a_response_format_beside_tools_is_either_calls_or_the_json(serve: Serve) -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    said = serve('hm\n</think>\n\n{"done": true}').answer("Hi", tools=[LOOK], response_format=format_)
    assert json.loads(said["choices"][0]["message"]["content"]) == {"done": True}
    said = serve("hm\n</think>\n\n" + CALL).answer("Hi", tools=[LOOK], response_format=format_)
    assert said["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


def test_calls_cut_by_the_budget_end_with_length(serve: Serve) -> None:
    """mini-swe-agent#862, #896: truncated and malformed are different things."""
    body = serve("hm\n</think>\n\n" + CALL).answer("Hi", tools=[LOOK], max_tokens=60)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


def test_a_model_without_a_tool_template_calls_in_the_json_form(serve: Serve) -> None:
    served = serve(
        '<tool_call>\n{"name": "look", "arguments": {"place": "Ulm"}}\n</tool_call>', template=PLAIN_TEMPLATE
    )
    body = served.answer("Hi", tools=[LOOK])
    assert body["choices"][0]["message"]["tool_calls"][0]["function"] == {
        "name": "look",
        "arguments": '{"place": "Ulm"}',
    }


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_not_in_the_answer(serve: Serve, stream: bool) -> None:
    served = serve("hm\n</think>\n\nOne. Two. Three.")
    reply = served.chat("Hi", stop=["Thr", " Two"], stream=stream)
    assert " Two" not in reply.text
    if not stream:
        assert reply.json()["choices"][0]["message"]["content"] == "One."


def test_n_answers_have_their_own_seeds_and_figures(serve: Serve) -> None:
    served = serve(says("a\n</think>\n\none", "b\n</think>\n\ntwo"))
    body = served.answer("Hi", n=2, seed=7)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["one", "two"]
    assert [choice["meta_info"]["seed"] for choice in body["choices"]] == [7, 8]
    assert body["usage"]["completion_tokens"] == sum(c["meta_info"]["completion_tokens"] for c in body["choices"])
    pieces = chunks(served.chat("Hi", n=2, stream=True))
    assert {piece["choices"][0]["index"] for piece in pieces} == {0, 1}


def test_a_missing_seed_is_drawn_and_returned(serve: Serve) -> None:
    served = serve(THINKING)
    drawn = [served.answer("Hi")["seed"] for _ in range(3)]
    assert len(set(drawn)) == 3
    assert all(0 <= seed < 2**53 for seed in drawn)
    assert served.answer("Hi", seed=12)["seed"] == 12
    assert served.answer("Hi", seed=-1)["seed"] == 2**64 - 1
    assert chunks(served.chat("Hi", stream=True, seed=5))[-1]["seed"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_come_one_per_token(serve: Serve, stream: bool) -> None:
    served = serve("é\n</think>\n\nzü")
    if stream:
        pieces = chunks(served.chat("Hi", logprobs=True, top_logprobs=2, stream=True))
        listed = [
            entry for piece in pieces for entry in (piece["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
    else:
        listed = served.answer("Hi", logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(listed) == len(ids("é\n</think>\n\nzü"))
    assert bytes(byte for entry in listed for byte in entry["bytes"]).decode() == "é\n</think>\n\nzü"
    assert all(entry["logprob"] == -0.5 for entry in listed)


def test_a_completion_continues_its_prompt(serve: Serve) -> None:
    served = serve("and so on")
    body = served.post("/v1/completions", {"prompt": "abc", "max_tokens": 6, "logprobs": 0}).json()
    assert body["choices"][0]["text"] == "and so"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert body["usage"]["prompt_tokens"] == 3
    assert client(served).completions.create(model="scripted", prompt="abc").choices[0].text == "and so on"


def test_completions_of_several_prompts_keep_their_order(serve: Serve) -> None:
    served = serve(lambda prompt: [*prompt[:2], END, *[END] * 100])
    body = served.post("/v1/completions", {"prompt": ["ab", "cd"], "n": 2}).json()
    assert [choice["text"] for choice in body["choices"]] == ["ab", "ab", "cd", "cd"]
    assert body["usage"]["prompt_tokens"] == 4
    body = served.post("/v1/completions", {"prompt": [ids("xy"), ids("zw")]}).json()
    assert [choice["text"] for choice in body["choices"]] == ["xy", "zw"]


def test_a_completion_streams(serve: Serve) -> None:
    served = serve("and so on")
    asked = {"prompt": "abc", "stream": True, "stream_options": {"include_usage": True}, "logprobs": 1}
    pieces = chunks(served.post("/v1/completions", asked))
    assert "".join(piece["choices"][0]["text"] for piece in pieces if piece["choices"]) == "and so on"
    offsets = [
        offset
        for piece in pieces
        if piece["choices"] and piece["choices"][0]["logprobs"]
        for offset in piece["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == list(range(9))
    assert pieces[-1]["usage"]["completion_tokens"] == 10


def test_figures_stand_where_each_kind_of_client_looks(serve: Serve) -> None:
    """facts/engines.md 6.3, 6.6: llama-server's timings, SGLang's meta_info in both places, vLLM's counters."""
    served = serve(THINKING, accepts=(3,))
    body = served.answer("Hi", return_meta_info=True)
    timings, info = body["timings"], body["meta_info"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["cache_n"] + timings["prompt_n"] == body["usage"]["prompt_tokens"]
    assert timings["predicted_n"] == body["usage"]["completion_tokens"]
    assert {"prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"} <= set(timings)
    assert info["spec_verify_ct"] == timings["cycles"]
    assert info["spec_accept_length"] == pytest.approx(timings["predicted_n"] / timings["cycles"], abs=1e-3)
    assert body["choices"][0]["meta_info"] == info
    assert timings["tau"] == 4.0
    assert sum(info["spec_accept_histogram"]) == info["spec_verify_ct"]
    last = chunks(served.chat("Hi", stream=True))[-1]
    assert last["timings"]["draft_n"] > 0
    assert last["choices"][0]["meta_info"]["spec_verify_ct"] == last["meta_info"]["spec_verify_ct"]
    scraped = served.http.get("/metrics").text
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f'vllm:spec_decode_{name}_total{{model_name="scripted"}}' in scraped
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="scripted",position="0"}' in scraped
    assert "meta_info" not in served.answer("Hi", return_meta_info=False)


def test_draft_figures_are_left_out_when_nothing_was_drafted(serve: Serve) -> None:
    """llama-server sends draft_n only if something was drafted; clients take its presence as the sign."""
    from dataclasses import replace

    served = serve(THINKING, facts=replace(FACTS, block=1))
    assert "draft_n" not in served.answer("Hi")["timings"]


def test_cached_tokens_are_told(serve: Serve) -> None:
    served = serve(THINKING)
    long = "x" * 300
    first = served.answer(long)["choices"][0]["message"]
    again = served.answer(
        messages=[{"role": "user", "content": long}, first, {"role": "user", "content": "and?"}],
        chat_template_kwargs={"preserve_thinking": True},
    )
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 300
    assert again["timings"]["prefix"]["why"] == "whole"
    assert again["timings"]["prefix"]["prefilled_share"] < 1.1


def test_models_are_listed_and_found_by_name(serve: Serve) -> None:
    served = serve(options=Options(name="our/model"))
    assert [model.id for model in client(served).models.list()] == ["our/model"]
    assert client(served).models.retrieve("our/model").id == "our/model"
    with pytest.raises(openai.NotFoundError):
        client(served).models.retrieve("other")


def test_text_becomes_tokens_and_tokens_text(serve: Serve) -> None:
    served = serve()
    both = [served.post("/tokenize", {name: "héllo"}).json()["tokens"] for name in ("prompt", "content")]
    assert both[0] == both[1] == ids("héllo")
    assert served.post("/detokenize", {"tokens": both[0]}).json() == {"prompt": "héllo", "content": "héllo"}
    chat = served.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    assert chat["count"] == served.answer("Hi")["usage"]["prompt_tokens"]
    assert chat["max_model_len"] == 2048


def test_sampling_parameters_reach_the_target(serve: Serve) -> None:
    """sparkring#161: top-p and top-k ignored under DFlash; sglang#33694: sampled requests greedy in silence."""
    served = serve(THINKING, options=Options(defaults={"temperature": 0.6, "top_k": 20}))
    seen: list[Any] = []
    begin = served.target.begin
    served.target.begin = lambda tokens, sampling, **rest: (
        seen.append((sampling, rest)),
        begin(tokens, sampling, **rest),
    )[1]  # type: ignore[method-assign]
    served.answer("Hi")
    assert (seen[-1][0].temperature, seen[-1][0].top_k) == (0.6, 20)
    served.answer(
        "Hi", temperature=0, top_p=0.5, top_k=-1, min_p=0.1, repeat_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=0.4, logit_bias={"5": -100}, seed=9, max_completion_tokens=11,
    )  # fmt: skip
    sampling, rest = seen[-1]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 0, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, 0.3, 0.4)
    assert (sampling.logit_bias, sampling.seed, rest["budget"]) == ({5: -100.0}, 9, 11)
    served.answer("Hi", ignore_eos=True, max_tokens=5)
    assert seen[-1][1]["stop_ids"] == ()


def test_template_options_reach_the_template(serve: Serve) -> None:
    served = serve("Hello.")
    off = served.answer("Hi", chat_template_kwargs={"enable_thinking": False})
    assert off["choices"][0]["message"] == {"role": "assistant", "content": "Hello."}
    assert served.answer("Hi", reasoning_effort="none")["usage"] == off["usage"]
    assert serve("Hi", template=PLAIN_TEMPLATE).chat("Hi", reasoning_effort="low").status_code == 400
