"""Calls of tools and reasoning as OpenAI's client takes them, from a model that says what it is
told to (t/lib/Moe/Chain.pm)."""

import json
import subprocess

import openai
import pytest

from server import ROOT, Server

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]
CALLS = [("weather", {"city": "Köln"}), ("weather", {"city": "Bonn"})]
WRITE = r"""
    use lib 't/lib';
    use utf8;
    use Moe::Chain;
    use Moe::Server;

    my $members = write_chain($ARGV[0], template =>
        '{% if tools %}{{ tools | tojson }}<tool_call></think>{% endif %}'
        . '{% for m in messages %}{{ m.content }}{% endfor %}',
        answers => { call => ['<think>', 'Two', ' cities.', '</think>', 'Let me', ' see.',
            map { ('<tool_call>', '{"name": "weather",', ' "arguments": {"city": ', "\"$_\"", '}}',
                   '</tool_call>') } 'Köln', 'Bonn'] });
    print JSON::PP->new->encode($members->{call});
"""


@pytest.fixture(scope="module")
def calling(tmp_path_factory):
    """A client, and what its requests must hold."""
    directory = tmp_path_factory.mktemp("calls", numbered=True) / "model"
    fields = json.loads(subprocess.run(["perl", "-CS", "-e", WRITE, directory], cwd=ROOT,
                                       check=True, capture_output=True).stdout)
    for path in (directory, *directory.parents[:3]):
        path.chmod(0o755)
    server = Server(model=directory)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client, {
            "model": "demo", "messages": [{"role": "user", "content": "@call"}], "tools": TOOLS,
            "temperature": 0, "frequency_penalty": fields["frequency_penalty"],
            "extra_body": {"allowed_token_ids": fields["allowed_token_ids"]},
        }
    server.stop()


def check(choice):
    message = choice.message
    assert choice.finish_reason == "tool_calls"
    assert message.content == "Let me see." and message.reasoning_content == "Two cities."
    assert [(call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls] == CALLS
    assert {call.type for call in message.tool_calls} == {"function"}
    return [call.id for call in message.tool_calls]


def test_whole_and_streamed(calling):
    client, request = calling
    ids = check(client.chat.completions.create(**request).choices[0])
    assert len(set(ids)) == 2
    with client.chat.completions.stream(**request) as stream:
        kinds = [event.type for event in stream]
        assert check(stream.get_final_completion().choices[0]) == ids
    assert kinds.count("tool_calls.function.arguments.done") == 2


def test_next_turn(calling):
    """The message goes back as it came, with the calls' results."""
    client, request = calling
    message = client.chat.completions.create(**request).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"}
               for call in message.tool_calls]
    answer = client.chat.completions.create(**{
        **request, "messages": [*request["messages"], message, *results, *request["messages"]]})
    check(answer.choices[0])
