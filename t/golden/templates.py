"""Golden data of chat templates: t/golden/templates/*.jinja, our own and one for each family's
ways, rendered by Jinja2 under the settings of Hugging Face's transformers, in which a model's
prompt is defined; and cases.json, what Jinja makes of single constructs.

Run by hand, in an environment of its own:

    python -m venv /tmp/golden && /tmp/golden/bin/pip install jinja2==3.1.6
    /tmp/golden/bin/python t/golden/templates.py

It writes templates.json, which t/golden/templates_test.c reads: special tokens, conversations as a
client of the API sends them, and rows [template, conversation, text], or [template, conversation,
null, message] where the template refuses it.  In cases.json it replaces what is expected.
"""

import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

assert jinja2.__version__ == "3.1.6"

HERE = pathlib.Path(__file__).parent / "templates"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ARGUMENTS = {"date_string": "2025-06-07"}


class Generation(Extension):
    """{% generation %}: transformers notes where such a block lies; its text is its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment(kind):
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime.fromtimestamp(0, datetime.timezone.utc).strftime
    return env


ENV = environment(ImmutableSandboxedEnvironment)


# Conversations.

def function(name, description=None, parameters=None, **more):
    described = {"name": name} | ({"description": description} if description else {})
    return {"type": "function", "function": described
            | {"parameters": parameters or {"type": "object", "properties": {}}} | more}


def call(identity, name, arguments):
    arguments = arguments if isinstance(arguments, str) \
        else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return {"id": identity, "type": "function",
            "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content} | more


def result(identity, content):
    return {"role": "tool", "tool_call_id": identity, "content": content}


SYSTEM = {"role": "system", "content": "Be brief."}
WEATHER = function("get_weather", "The weather of a city.", {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Its name: \"Genève\""},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer", "default": 1, "minimum": 0},
    },
    "required": ["city"],
}, strict=False)
SEARCH = function("search", "Finds\ntexts.", {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "string"}, "description": "Words"},
        "filter": {"type": "object", "nullable": True, "properties": {
            "keys": {"type": "array", "items": {"type": "object", "properties": {
                "get": {"type": "number"}}, "required": ["get"]}},
            "by": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        "weight": {"type": ["number", "null"], "default": 0.5},
        "exact": {"type": "boolean", "default": False},
    },
    "required": ["items", "filter"], "additionalProperties": False,
})
NOW = function("now")

NESTED = {"items": ["a\"b", "c\\d\n", "日本 🎉", "</s><|im_end|>"], "filter": {"keys": [
    {"get": 1.0}, {"get": -0.5}, {"get": 1e-07}], "by": None}, "weight": 1e+16, "exact": True}

CALLED = [user("Weather?"),
          assistant(None, tool_calls=[call("call00001", "get_weather", {"city": "Genève"})]),
          result("call00001", "{\"temp\": 21.5, \"sky\": \"☀\"}")]
PARALLEL = [SYSTEM, user("Weather, and news?"),
            assistant(None, tool_calls=[
                call("call00001", "get_weather", {"city": "Bonn", "days": 2}),
                call("call00002", "search", NESTED), call("call00003", "now", "")]),
            result("call00001", "rain"), result("call00002", "[]"), result("call00003", "12:00")]
THOUGHT = [user("2 + 2?"), assistant("4", reasoning_content="Two and two.\nEasy.")]
INTERLEAVED = [user("Is it warm?"),
               assistant("I look.", reasoning_content="I need the weather.", tool_calls=[
                   call("call00001", "get_weather", {"city": "Köln", "unit": "C"})]),
               result("call00001", "30"),
               assistant(None, reasoning_content="And in Fahrenheit?", tool_calls=[
                   call("call00002", "get_weather", {"city": "Köln", "unit": "F"})]),
               result("call00002", "86")]


def conversation(messages, tools=None, prompt=True, final=False, **arguments):
    return {key: value for key, value in (
        ("messages", messages), ("tools", tools), ("add_generation_prompt", prompt),
        ("continue_final_message", final), ("arguments", arguments)) if value}


CONVERSATIONS = {
    "question": conversation([user("Hi")]),
    "turns": conversation([SYSTEM, user("Hi"), assistant("Hello!"),
                           user("How are you? <|im_end|>")]),
    "answered": conversation([SYSTEM, user("Hi"), assistant("Hello!")], prompt=False),
    "blanks": conversation([user("  a\n\n\tb \r\n"), assistant("\n x \n"),
                            user("</think> 🎉 \u0000")]),
    "tools": conversation([SYSTEM, user("Weather?")], [WEATHER, SEARCH, NOW]),
    "tools, no system": conversation([user("Weather?")], [NOW]),
    "call": conversation(CALLED, [WEATHER]),
    "call, answered": conversation(CALLED + [assistant("21.5 °C"), user("Thanks")], [WEATHER]),
    "call, no tools": conversation(CALLED, prompt=False),
    "calls": conversation(PARALLEL, [WEATHER, SEARCH, NOW]),
    "thought": conversation(THOUGHT + [user("3 + 3?")]),
    "thought, end": conversation(THOUGHT, prompt=False),
    "thought, kept": conversation(THOUGHT + [user("3 + 3?")], clear_thinking=False),
    "thought in content": conversation([user("a"), assistant("<think>\nold\n</think>\n\nb"),
                                        user("c")]),
    "interleaved": conversation(INTERLEAVED, [WEATHER]),
    "interleaved, answered": conversation(INTERLEAVED + [assistant("Yes.", reasoning_content="30."),
                                                         user("And now?")], [WEATHER]),
    "not thinking": conversation([user("Hi")], enable_thinking=False, thinking=False),
    "thinking": conversation([user("Hi")], enable_thinking=True, thinking=True,
                             reasoning_effort="high"),
    "identity": conversation([SYSTEM, user("Hi")], model_identity="Moe", date_string="2026-02-03"),
    "developer": conversation([{"role": "developer", "content": "Rhyme."}, user("Hi")]),
    "parts": conversation([user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]),
    "continued": conversation([user("Count."), assistant(" one, two")], prompt=False, final=True),
    "two questions": conversation([user("a"), user("b")]),
    "result alone": conversation([user("a"), result("call00009", "x")]),
}


# What the engine makes of a client's messages before a template sees them (engine/text/chat.h).

STRING_ARGUMENTS = {"deepseek_v3_1"}
THINKING = {"gpt_oss"}
DEVELOPER = {"gpt_oss"}
PARTS = {"glm_4_5", "glm_4_7", "kimi_k2", "minimax_m2"}


def adapt(message, name):
    message = json.loads(json.dumps(message))
    if message["role"] == "developer" and name not in DEVELOPER:
        message["role"] = "system"
    if isinstance(message["content"], list) and name not in PARTS:
        message["content"] = "\n".join(part["text"] for part in message["content"])
    if name in THINKING and "reasoning_content" in message:
        message["thinking"] = message["reasoning_content"]
        if message.get("tool_calls") and message["content"]:
            message["thinking"] += "\n\n" + message["content"]
            message["content"] = ""
    for made in message.get("tool_calls", []) if name not in STRING_ARGUMENTS else []:
        made["function"]["arguments"] = json.loads(made["function"]["arguments"] or "{}")
    return message


def cut_final(text, final):
    """As transformers does for continue_final_message."""
    at = text.rindex(final.strip())
    whole = text[at:at + len(final.lstrip())]
    return text[:at + len(whole)] if whole == final.lstrip() else text[:at + len(final.strip())]


def render(name, given):
    source = (HERE / f"{name}.jinja").read_text()
    messages = [adapt(message, name) for message in given["messages"]]
    variables = (SPECIAL | {"tools": None, "documents": None, "add_generation_prompt": False,
                            "continue_final_message": False} | ARGUMENTS
                 | given.get("arguments", {}) | given | {"messages": messages})
    try:
        text = ENV.from_string(source).render(variables)
    except TypeError:
        for message in messages:
            message["content"] = message["content"] or ""
        text = ENV.from_string(source).render(variables)
    if given.get("continue_final_message"):
        text = cut_final(text, messages[-1]["content"])
    return text


def rows():
    for path in sorted(HERE.glob("*.jinja")):
        for name, given in CONVERSATIONS.items():
            try:
                yield [path.stem, name, render(path.stem, given)]
            except jinja2.exceptions.UndefinedError as error:
                print(f"{path.stem}, {name}: left out: {error}")
            except jinja2.exceptions.TemplateError as error:
                yield [path.stem, name, None, str(error)]


def main():
    text = json.dumps({"jinja2": jinja2.__version__, "special": SPECIAL,
                       "arguments": ARGUMENTS}, ensure_ascii=False)
    lines = [f"{json.dumps(name)}: {json.dumps(given, ensure_ascii=False, separators=(',', ':'))}"
             for name, given in CONVERSATIONS.items()]
    expected = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows()]
    (HERE.parent / "templates.json").write_text(
        text[:-1] + ',\n"conversations": {\n' + ",\n".join(lines) + '\n},\n"rows": [\n'
        + ",\n".join(expected) + "\n]}\n")

    # The engine lets templates change lists, as some models' templates do.
    env = environment(SandboxedEnvironment)
    cases = json.loads((HERE / "cases.json").read_text())
    for case in cases:
        case["expected"] = env.from_string(case["template"]).render(case.get("variables", {}))
    (HERE / "cases.json").write_text("[\n" + ",\n".join(
        json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
