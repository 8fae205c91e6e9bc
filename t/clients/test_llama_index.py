"""llama-index: its LLM for servers that speak OpenAI's protocol."""

import asyncio

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from server import ANSWER, QUESTION

USER = [ChatMessage(role="user", content=QUESTION)]


def llm(server, **fields):
    return OpenAILike(api_base=server.url + "/v1", api_key="none",
                      **{"model": "demo", "is_chat_model": True, "context_window": 2048,
                         "temperature": 0, "max_retries": 0, **fields})


def test_chat(server):
    answer = llm(server).chat(USER)
    assert answer.message.role == "assistant" and ANSWER in answer.message.content
    chunks = list(llm(server).stream_chat(USER))
    assert "".join(chunk.delta or "" for chunk in chunks) == answer.message.content
    assert chunks[-1].message.content == answer.message.content


def test_chat_async(server):
    async def run():
        answer = await llm(server).achat(USER)
        stream = await llm(server).astream_chat(USER)
        assert "".join([chunk.delta or "" async for chunk in stream]) == answer.message.content

    asyncio.run(run())


def test_complete(server):
    one = llm(server, is_chat_model=False, max_tokens=8)
    whole = one.complete("Syntax:").text
    assert whole and [chunk.text for chunk in one.stream_complete("Syntax:")][-1] == whole


def test_conversation(server):
    messages = [ChatMessage(role="system", content="Be brief."), *USER,
                ChatMessage(role="assistant", content=ANSWER), *USER]
    assert llm(server).chat(messages).message.content
    assert "75" not in llm(server).chat(USER, stop=["75"]).message.content
    assert llm(server, additional_kwargs={"extra_body": {"top_k": 1}}).chat(USER).message.content


def test_errors(server):
    with pytest.raises(openai.NotFoundError):
        llm(server, model="other").chat(USER)
    with pytest.raises(openai.BadRequestError):
        list(llm(server, additional_kwargs={"top_p": 7}).stream_chat(USER))
