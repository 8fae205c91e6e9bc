"""langchain-openai: chat model and completion model."""

import asyncio

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from server import ANSWER, QUESTION


def chat(server, **fields):
    return ChatOpenAI(base_url=server.url + "/v1", api_key="none",
                      **{"model": "demo", "max_retries": 0, "temperature": 0, **fields})


def llm(server, **fields):
    return OpenAI(model="demo", base_url=server.url + "/v1", api_key="none",
                  **{"max_retries": 0, "temperature": 0, "max_tokens": 12, **fields})


def test_invoke(server):
    answer = chat(server).invoke(QUESTION)
    assert ANSWER in answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["total_tokens"] == \
        answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]


def test_stream(server):
    whole = chat(server).invoke(QUESTION)
    total = None
    for chunk in chat(server, stream_usage=True).stream(QUESTION):
        total = chunk if total is None else total + chunk
    assert total.content == whole.content
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert total.response_metadata["finish_reason"] == "stop"


def test_async_and_batch(server):
    async def run():
        model = chat(server)
        whole = (await model.ainvoke(QUESTION)).content
        parts = [chunk.content async for chunk in model.astream(QUESTION)]
        batch = await model.abatch([QUESTION] * 4)
        assert "".join(parts) == whole
        assert [one.content for one in batch] == [whole] * 4

    asyncio.run(run())


def test_conversation_stop_logprobs(server):
    messages = [SystemMessage("Be brief."), HumanMessage(QUESTION), AIMessage(ANSWER),
                HumanMessage([{"type": "text", "text": QUESTION}])]
    assert chat(server).invoke(messages).content
    assert "75" not in chat(server).bind(stop=["75"]).invoke(QUESTION).content
    scored = chat(server, logprobs=True, top_logprobs=2, seed=3).invoke(QUESTION)
    assert len(scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_several_choices(server):
    generations = chat(server, n=2, temperature=1, seed=1).generate([[HumanMessage("nginx")]])
    assert len(generations.generations[0]) == 2


def test_cancelled_stream(server):
    stream = chat(server, max_tokens=1900, extra_body={"ignore_eos": True}).stream("x")
    next(stream)
    next(stream)
    assert server.running() == 1
    stream.close()
    server.idle()


def test_completions(server):
    whole = llm(server).invoke("Syntax:")
    assert whole and "".join(llm(server).stream("Syntax:")) == whole
    assert llm(server).batch(["Syntax:", "Default:"])[0] == whole
    results = llm(server).generate(["Syntax:", "Default:"])
    assert results.llm_output["token_usage"]["completion_tokens"] == 24


def test_errors(server):
    with pytest.raises(openai.NotFoundError):
        chat(server, model="other").invoke("x")
    with pytest.raises(openai.BadRequestError):
        list(chat(server, top_p=7).stream("x"))
    with pytest.raises(ContextOverflowError):
        chat(server).invoke("word " * 4000)
