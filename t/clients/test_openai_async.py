"""OpenAI's asynchronous client: many requests at once, cancellation by task."""

import asyncio

import openai
import pytest

from server import ANSWER, QUESTION

USER = [{"role": "user", "content": QUESTION}]


def client(server):
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


async def streamed(one, **fields):
    stream = await one.completions.create(model="demo", stream=True, **fields)
    return "".join([chunk.choices[0].text async for chunk in stream])


def test_chat(server):
    async def run():
        async with client(server) as one:
            answer = await one.chat.completions.create(model="demo", messages=USER)
            stream = await one.chat.completions.create(model="demo", messages=USER, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            raw = await one.chat.completions.with_raw_response.create(model="demo",
                                                                      messages=USER)
            models = [model.id async for model in one.models.list()]
        text = answer.choices[0].message.content
        assert ANSWER in text and "".join(parts) == text
        assert raw.status_code == 200
        assert raw.parse().choices[0].message.content == text
        assert models[0] == "demo"

    asyncio.run(run())


def test_concurrency_changes_nothing(server):
    async def run():
        async with client(server) as one:
            fields = [{"prompt": f"{name}:", "temperature": heat, "seed": 5, "max_tokens": 40}
                      for name in ("Syntax", "Default", "Context") for heat in (0, 1)]
            alone = [await streamed(one, **each) for each in fields]
            together = await asyncio.gather(*[streamed(one, **each) for each in fields * 4])
            assert together == alone * 4

    asyncio.run(run())


def test_cancelled_task(server):
    async def run():
        async with client(server) as one:
            task = asyncio.create_task(streamed(one, prompt="Syntax:", max_tokens=1900,
                                                extra_body={"ignore_eos": True}))
            while server.running() == 0:
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(server.idle)

    asyncio.run(run())


def test_errors(server):
    async def run():
        async with client(server) as one:
            for fields, kind in (({"model": "other"}, openai.NotFoundError),
                                 ({"temperature": -1}, openai.BadRequestError)):
                with pytest.raises(kind):
                    await one.chat.completions.create(
                        **{"model": "demo", "messages": USER, "stream": True, **fields})

    asyncio.run(run())
