"""OpenAI's own client: what it sends, and that its types hold what came back."""

import math

import openai
import pytest

from server import ANSWER, LONG, QUESTION

USER = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


def chat(client, messages=USER, **fields):
    return client.chat.completions.create(model="demo", messages=messages, **fields)


def complete(client, prompt="Syntax:", **fields):
    return client.completions.create(model="demo", prompt=prompt,
                                     **{"max_tokens": 8, "temperature": 0, **fields})


def content(client, messages=USER, **fields):
    return chat(client, messages, **fields).choices[0].message.content


def text(client, prompt="Syntax:", **fields):
    return complete(client, prompt, **fields).choices[0].text


def joined(stream):
    """A chat stream's text; each chunk of it is what the reference says."""
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert deltas[-1].content is None
    assert all(reason is None for reason in reasons[:-1]) and reasons[-1]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint)
                for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    return "".join(delta.content or "" for delta in deltas), reasons[-1]


def test_chat(client):
    answer = chat(client)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion" and answer.model == "demo"
    assert answer.system_fingerprint.startswith("fp_")
    choice, = answer.choices
    assert choice.index == 0 and choice.finish_reason == "stop" and choice.logprobs is None
    assert choice.message.role == "assistant" and choice.message.refusal is None
    assert ANSWER in choice.message.content and not choice.message.tool_calls
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_chat_stream(client):
    assert joined(chat(client, stream=True)) == (content(client), "stop")


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model="demo", messages=USER) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == content(client)


def test_completion(client):
    answer = complete(client)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    chunks = list(complete(client, stream=True))
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"


def test_completion_default_length(client):
    answer = client.completions.create(model="demo", prompt="Syntax:", temperature=0,
                                       extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_raw_responses(client):
    raw = client.chat.completions.with_raw_response.create(model="demo", messages=USER)
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert int(raw.headers["content-length"]) == len(raw.content)
    assert raw.parse().choices[0].message.content == content(client)
    with client.chat.completions.with_streaming_response.create(
            model="demo", messages=USER, stream=True) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert raw.headers["cache-control"] == "no-cache"
        lines = [line for line in raw.iter_lines() if line]
    assert all(line.startswith("data: {") for line in lines[:-1])
    assert lines[-1] == "data: [DONE]"


def test_request_id(client):
    answer = chat(client, max_tokens=1)
    assert answer._request_id and answer._request_id in answer.id
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[])
    assert caught.value.request_id


@pytest.mark.parametrize("asked", [True, False])
def test_stream_usage(client, asked):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": asked}))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    if asked:
        assert chunks[-1].choices == []
        assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == \
            chat(client).usage.model_dump(exclude={"prompt_tokens_details"})
    else:
        assert chunks[-1].usage is None and chunks[-1].choices


def test_models(client):
    assert [model.id for model in client.models.list()] == ["demo", "gpt-4o-mini"]
    model = client.models.retrieve("demo")
    assert (model.id, model.object, model.owned_by) == ("demo", "model", "ngx_http_moe")
    assert model.created > 1_500_000_000 and model.max_model_len == 2048
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_alias(client):
    answer = client.chat.completions.create(model="gpt-4o-mini", messages=USER)
    assert ANSWER in answer.choices[0].message.content


@pytest.mark.parametrize("fields", [{"max_tokens": 3}, {"max_completion_tokens": 3}])
def test_length(client, fields):
    answer = chat(client, **fields)
    assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stop", ["75", ["never", "75"], "timeout 7", ["5s"]])
def test_stop(client, stop):
    whole = content(client)
    first = min(whole.index(one) for one in ([stop] if isinstance(stop, str) else stop)
                if one in whole)
    answer = chat(client, stop=stop)
    assert answer.choices[0].message.content == whole[:first]
    assert answer.choices[0].finish_reason == "stop"
    assert joined(chat(client, stop=stop, stream=True)) == (whole[:first], "stop")


def test_seed(client):
    def draw(seed):
        return text(client, temperature=1.5, seed=seed, max_tokens=24)

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client, stream):
    answer = chat(client, logprobs=True, top_logprobs=3, stream=stream)
    parts = list(answer) if stream else [answer]
    tokens = [token for part in parts if part.choices[0].logprobs
              for token in part.choices[0].logprobs.content]
    assert bytes(byte for token in tokens for byte in token.bytes).decode() \
        .startswith(content(client))
    for token in tokens:
        assert len(token.top_logprobs) == 3 and -9999 <= token.logprob <= 0
        assert token.top_logprobs[0].logprob >= token.logprob


def test_completion_logprobs(client):
    choice = complete(client, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset[0] == 0
    assert all(math.isfinite(one) for one in logprobs.token_logprobs)
    assert all(max(top.values()) == one for top, one
               in zip(logprobs.top_logprobs, logprobs.token_logprobs, strict=True))


def test_echo(client):
    choice = complete(client, echo=True, max_tokens=0, logprobs=1).choices[0]
    assert choice.text == "Syntax:"
    assert choice.logprobs.token_logprobs[0] is None
    assert None not in choice.logprobs.token_logprobs[1:]
    assert text(client, echo=True) == "Syntax:" + text(client)


def prompt_ids(client, prompt):
    answer = complete(client, prompt, max_tokens=1, extra_body={"return_token_ids": True})
    return answer.choices[0].prompt_token_ids


def test_prompt_forms(client):
    one, two = "Syntax:", "Default:"
    ids = [prompt_ids(client, one), prompt_ids(client, two)]
    expected = [text(client, one), text(client, two)]
    for prompt in ([one, two], ids):
        answer = complete(client, prompt)
        assert [choice.text for choice in answer.choices] == expected
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage.prompt_tokens == sum(map(len, ids))
        texts = ["", ""]
        for chunk in complete(client, prompt, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == expected
    assert text(client, ids[0]) == expected[0]
    assert text(client, [one]) == expected[0]


def test_several_choices(client):
    fields = {"temperature": 1.3, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
    alone = [text(client, seed=seed, **fields) for seed in (4, 5, 6)]
    answer = complete(client, n=3, seed=4, **fields)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == alone
    assert answer.usage.completion_tokens == 60
    texts = ["", "", ""]
    for chunk in complete(client, n=3, seed=4, stream=True, **fields):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == alone
    assert text(client, best_of=3, seed=4, **fields) in alone
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, best_of=3, stream=True)
    assert caught.value.param == "best_of"
    assert len(chat(client, n=2).choices) == 2


@pytest.mark.parametrize("role", ["system", "developer"])
def test_leading_roles(client, role):
    assert content(client, [{"role": role, "content": "You are helpful."}, *USER])


def test_conversation(client):
    messages = [*USER, {"role": "assistant", "content": content(client)},
                {"role": "user", "content": [{"type": "text", "text": "And of "},
                                             {"type": "text", "text": "send_timeout?"}]}]
    joined_parts = [*messages[:2], {"role": "user", "content": "And of send_timeout?"}]
    assert content(client, messages) == content(client, joined_parts)


@pytest.mark.parametrize("extra", [
    {"top_k": 1}, {"min_p": 0.9}, {"top_k": -1}, {"repetition_penalty": 1.0},
    {"chat_template_kwargs": {"enable_thinking": False}}, {"include_reasoning": False},
    {"skip_special_tokens": True}, {"priority": 3}, {"unheard_of": {"a": [1]}},
])
def test_extra_body(client, extra):
    assert content(client, temperature=0, extra_body=extra) == content(client)


def test_extra_top_k_is_greedy(client):
    drawn = content(client, temperature=2, seed=1, extra_body={"top_k": 1})
    assert drawn == content(client)


def test_extra_fields_of_openai(client):
    assert content(client, user="u", metadata={"a": "b"}, store=False, service_tier="auto",
                   parallel_tool_calls=True, response_format={"type": "text"}, tools=[], n=1,
                   logit_bias={}, presence_penalty=0, frequency_penalty=0, top_p=1,
                   reasoning_effort="low", modalities=["text"], verbosity="low",
                   prompt_cache_key="k", safety_identifier="s") == content(client)


@pytest.mark.parametrize("fields, param", [
    ({"temperature": 3}, "temperature"), ({"top_p": -1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"), ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"stop": [""]}, "stop"),
    ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21},
                                            "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {
        "url": "http://localhost/"}}]}]}, "messages[0].content[0].type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_request(client, fields, param, stream):
    if "stream_options" in fields and stream:
        fields = {"stream_options": 1}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **{"stream": stream, **fields})
    error = caught.value
    assert error.status_code == 400 and error.type == "invalid_request_error"
    assert error.param == param and param.split("[")[0] in error.message
    assert len(error.response.content) < 4096


@pytest.mark.parametrize("stream", [False, True])
def test_context_length(client, stream):
    for fields in ({"prompt": [5] * 2048}, {"prompt": [5] * 2049},
                   {"prompt": [5] * 10, "max_tokens": 2039}):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, stream=stream, **fields)
        assert caught.value.code == "context_length_exceeded"
    assert complete(client, prompt=[5] * 2047, max_tokens=1).usage.total_tokens == 2048


def test_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=USER)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="demo", input="x")


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_cancel(server, client, kind):
    fields = {"stream": True, "max_tokens": 1900, "extra_body": {"ignore_eos": True}}
    stream = chat(client, **fields) if kind == "chat" else complete(client, **fields)
    for _, _ in zip(range(3), stream):
        pass
    assert server.running() == 1
    stream.close()
    server.idle()


def test_timeout_cancels(server, client):
    with pytest.raises(openai.APITimeoutError):
        complete(client.with_options(timeout=0.2), LONG["prompt"], max_tokens=1900,
                 extra_body={"ignore_eos": True})
    server.idle()
