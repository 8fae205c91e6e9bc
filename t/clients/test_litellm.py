"""litellm: its provider for servers that speak OpenAI's protocol."""

import asyncio

import litellm
import pytest

from server import ANSWER, QUESTION

USER = [{"role": "user", "content": QUESTION}]


def fields(server, **more):
    return {"model": "openai/demo", "api_base": server.url + "/v1", "api_key": "none",
            "messages": USER, "temperature": 0, "max_retries": 0, "num_retries": 0, **more}


def joined(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_completion(server):
    answer = litellm.completion(**fields(server))
    assert ANSWER in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == \
        answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream(server):
    whole = litellm.completion(**fields(server))
    chunks = list(litellm.completion(**fields(server, stream=True, stream_options={
        "include_usage": True})))
    assert joined(chunks) == whole.choices[0].message.content
    rebuilt = litellm.stream_chunk_builder(chunks, messages=USER)
    assert rebuilt.choices[0].message.content == whole.choices[0].message.content
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_async(server):
    async def run():
        whole = await litellm.acompletion(**fields(server))
        stream = await litellm.acompletion(**fields(server, stream=True))
        assert joined([chunk async for chunk in stream]) == whole.choices[0].message.content

    asyncio.run(run())


def test_text_completion(server):
    more = fields(server, model="text-completion-openai/demo", max_tokens=8, prompt="Syntax:")
    del more["messages"]
    whole = litellm.text_completion(**more)
    assert whole.choices[0].text and whole.choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].text or "" for chunk in
                   litellm.text_completion(**more, stream=True)) == whole.choices[0].text


def test_parameters(server):
    answer = litellm.completion(**fields(server, max_tokens=5, seed=1, stop=["75"], user="u",
                                         logprobs=True, top_logprobs=2, top_k=1))
    assert "75" not in answer.choices[0].message.content
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_errors(server, stream):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**fields(server, model="openai/other", stream=stream))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**fields(server, top_p=7, stream=stream))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**fields(server, stream=stream, messages=[
            {"role": "user", "content": "word " * 4000}]))


def test_router_retries(server):
    """A deployment that fails is left for one that serves."""
    router = litellm.Router(num_retries=2, retry_after=0, model_list=[
        {"model_name": "m", "litellm_params": {"model": "openai/demo", "api_key": "none",
                                               "api_base": server.url + "/v1"}}])
    assert ANSWER in router.completion(model="m", messages=USER).choices[0].message.content
