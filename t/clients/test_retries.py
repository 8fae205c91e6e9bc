"""A full queue is 429, a wait too long 503: clients wait as told and come back."""

import threading
import time

import openai
import pytest

from server import LONG, wait_until


@pytest.fixture
def busy(slow_server):
    """The slow server with its one place taken."""
    slow_server.idle()
    with slow_server.occupied():
        yield slow_server
    slow_server.idle()


def client(server, retries):
    """A client that has loaded what it loads lazily, which may take longer than the queue waits."""
    one = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=retries)
    assert one.models.list() and one.completions
    return one


def ask(one, **fields):
    return one.completions.create(model="demo", prompt="Syntax:", max_tokens=2, **fields)


def waiter(server):
    """Takes the queue's one place for as long as the server lets it wait."""
    def wait():
        server.post("/v1/completions", **dict(LONG, max_tokens=2))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: server.waiting() == 1)
    return thread


@pytest.mark.parametrize("stream", [False, True])
def test_rate_limit(busy, stream):
    one = client(busy, 0)
    thread = waiter(busy)
    with pytest.raises(openai.RateLimitError) as caught:
        ask(one, stream=stream)
    thread.join()
    error = caught.value
    assert error.status_code == 429 and error.code == "rate_limit_exceeded"
    assert int(error.response.headers["retry-after"]) >= 1


def test_unavailable(busy):
    with pytest.raises(openai.InternalServerError) as caught:
        ask(client(busy, 0))
    error = caught.value
    assert error.status_code == 503 and error.type == "service_unavailable"
    assert int(error.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry(slow_server, status):
    slow_server.idle()
    before = len(slow_server.log("access.log").splitlines())
    one = client(slow_server, 3)
    with slow_server.occupied() as runner:
        thread = waiter(slow_server) if status == 429 else None
        answers = []
        asker = threading.Thread(target=lambda: answers.append(ask(one)))
        asker.start()
        wait_until(lambda: [line for line in slow_server.attempts(before)
                            if line.startswith(f"{status} 0 ")])
        refused = time.monotonic()
        runner.close()
        asker.join()
        if thread:
            thread.join()
    assert answers[0].usage.completion_tokens == 2
    assert time.monotonic() - refused >= 1.5    # Retry-After is 2, the SDK's own wait 0.5
    assert any(line.startswith("200 1 ") for line in slow_server.attempts(before))
