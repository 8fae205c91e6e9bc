"""curl and h2load: HTTP/1.1, HTTP/2 in the clear and over TLS, as shells and load tests use it."""

import json
import re
import subprocess

import pytest

from server import ANSWER, LONG, QUESTION, wait_until

CHAT = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}]}


def run(*command, timeout=60):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True,
                          timeout=timeout).stdout


def ways(server):
    """The options and the address of each way to reach the server."""
    return {
        "1.0": (["--http1.0"], server.url),
        "1.1": (["--http1.1"], server.url),
        "h2c": (["--http2-prior-knowledge"], f"http://127.0.0.1:{server.h2_port}"),
        "tls": (["--http1.1", "-k"], f"https://127.0.0.1:{server.tls_port}"),
        "h2": (["--http2", "-k"], f"https://127.0.0.1:{server.tls_port}"),
    }


def curl(server, way, body, *options, path="/v1/chat/completions"):
    more, url = ways(server)[way]
    return run("curl", "-sS", *more, *options, url + path, "-d", json.dumps(body))


@pytest.mark.parametrize("way", ["1.0", "1.1", "h2c", "tls", "h2"])
def test_curl(server, way):
    version = "2" if way.startswith("h2") else "1.1"
    expected = server.post("/v1/chat/completions", **CHAT)[2]["choices"][0]["message"]["content"]
    answer = curl(server, way, CHAT, "-w", "\n%{http_version} %{http_code} %{content_type}")
    body, _, head = answer.rpartition("\n")
    assert head == f"{version} 200 application/json" and ANSWER in expected
    assert json.loads(body)["choices"][0]["message"]["content"] == expected
    events = curl(server, way, dict(CHAT, stream=True), "-N").split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"]
              for event in events[:-2]]
    assert "".join(delta.get("content", "") for delta in deltas) == expected


def test_curl_reads_error(server):
    answer = curl(server, "1.1", {"model": "demo"}, "-w", "\n%{http_code}")
    body, _, status = answer.rpartition("\n")
    assert status == "400" and json.loads(body)["error"]["param"] == "messages"


def test_curl_expects_100(server):
    body = dict(CHAT, user="x" * 100_000)
    answer = run("curl", "-sS", "-H", "Expect: 100-continue", server.url + "/v1/chat/completions",
                 "-H", "Content-Type: application/json", "-d", json.dumps(body))
    assert ANSWER in json.loads(answer)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("way", ["1.1", "h2c", "h2"])
def test_curl_gives_up(server, way):
    more, url = ways(server)[way]
    gone = subprocess.run(["curl", "-sSN", "-m", "1", *more, url + "/v1/completions", "-d",
                           json.dumps(dict(LONG, stream=True, max_tokens=1900))],
                          capture_output=True, text=True)
    assert gone.returncode in (0, 28) and gone.stdout.startswith("data: {")
    server.idle()


def test_curl_retries(slow_server):
    """curl --retry waits as Retry-After says."""
    slow_server.idle()
    before = len(slow_server.log("access.log").splitlines())
    with slow_server.occupied() as runner:
        asker = subprocess.Popen(
            ["curl", "-sS", "--fail", "--retry", "3", slow_server.url + "/v1/completions", "-d",
             json.dumps(dict(LONG, max_tokens=2))], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        wait_until(lambda: [line for line in slow_server.attempts(before)
                            if line.startswith("503 ")])
        runner.close()
        answer, _ = asker.communicate(timeout=60)
    assert json.loads(answer)["usage"]["completion_tokens"] == 2
    slow_server.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_h2load(server, tmp_path, stream):
    body = tmp_path / "body.json"
    body.write_text(json.dumps(dict(LONG, max_tokens=8, stream=stream)))
    report = run("h2load", "-n", 48, "-c", 4, "-m", 6, "-T", 30, "-d", body,
                 f"https://127.0.0.1:{server.tls_port}/v1/completions")
    assert "Application protocol: h2" in report
    assert re.search(r"48 succeeded, 0 failed, 0 errored, 0 timeout", report), report
    assert re.search(r"48 2xx, 0 3xx, 0 4xx, 0 5xx", report), report
    server.idle()
