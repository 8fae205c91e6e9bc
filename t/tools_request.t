# Tools in chat requests: what is refused and how, and what the model is shown of the rest.

use lib 't/lib';
use utf8;
use Moe::Test;

my $chats = '/v1/chat/completions';

# A template that shows what it was given, one line each.
my $template = <<'END_OF_TEMPLATE';
{{- bos_token -}}
tools {{ 'none' if tools is none else tools | tojson }}
{% for message in messages %}
{{ message.role }} {{ message.content | tojson }}
{%- if message.reasoning_content %} thought {{ message.reasoning_content }}{% endif %}
{%- for call in message.tool_calls or [] %}
 calls {{ call.id }} {{ call.function.name }}
{%- for key, value in call.function.arguments.items() %} {{ key }}={{ value | tojson }}{% endfor %}
{%- endfor %}
{%- if message.role == 'tool' %} answers {{ message.tool_call_id }}{% endif %}

{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
END_OF_TEMPLATE

my $server = server(start => 0, model_block => 'chat_template chat.jinja;');
my $file = $server->write_file('chat.jinja', $template);
$server->start;

my @user = ({ role => 'user', content => 'a' });
my $tool = { type => 'function', function => { name => 'f' } };
my $call = { id => 'c1', type => 'function', function => { name => 'f', arguments => '{}' } };


# The text of the prompt that a chat becomes; or the answer when it is an error.
sub prompt_of {
    my ($body) = @_;

    if (ref $body) {
        $body = { model => 'demo', max_tokens => 1, return_token_ids => \1, %$body };
    } else {
        utf8::encode($body);
    }
    my $answer = post($server, $chats, $body);
    return $answer if $answer->{status} != 200;
    my $text = completion($server, { prompt => $answer->{json}{prompt_token_ids}, echo => \1,
        max_tokens => 0, skip_special_tokens => \0 })->{json}{choices}[0]{text};
    return $text =~ s/^<\|bos\|>//r =~ s/<\|assistant\|>$/>/r;
}


sub function {
    return { tools => [$tool, { type => 'function', function => { name => 'g', @_ } }] };
}


sub calls {
    return { messages => [@user, { role => 'assistant', tool_calls => [$call, @_] }] };
}


# What is refused: members of the body, the place at fault, the code.
my $message = 'messages[1]';
for my $case (
    [{ tools => {} }, 'tools'], [{ tools => 'f' }, 'tools'],
    [{ tools => [($tool) x 1025] }, 'tools'], [{ tools => [5] }, 'tools[0]'], [{ tools => [$tool, []] }, 'tools[1]'],
    [{ tools => [{ function => { name => 'f' } }] }, 'tools[0].type'],
    [{ tools => [{ %$tool, type => 'custom' }] }, 'tools[0].type', 'unsupported_value'],
    [{ tools => [{ type => 'function' }] }, 'tools[0].function'],
    [{ tools => [{ type => 'function', function => 'f' }] }, 'tools[0].function'],
    [function(name => undef), 'tools[1].function.name'],
    [function(name => ''), 'tools[1].function.name'],
    [function(name => 'a b'), 'tools[1].function.name'],
    [function(name => "a\0"), 'tools[1].function.name'],
    [function(name => 'é'), 'tools[1].function.name'],
    [function(name => 'x' x 65), 'tools[1].function.name'],
    [function(description => 5), 'tools[1].function.description'],
    [function(strict => 'yes'), 'tools[1].function.strict'],
    [function(strict => \1), 'tools[1].function.strict', 'unsupported_value'],
    [function(parameters => []), 'tools[1].function.parameters'],
    [function(parameters => { type => 'string' }), 'tools[1].function.parameters'],
    [function(parameters => { type => ['object'] }), 'tools[1].function.parameters'],
    [function(parameters => { properties => [] }), 'tools[1].function.parameters'],
    [function(parameters => deep(65)), 'tools[1].function.parameters'],
    [{ tools => [$tool], tool_choice => 'required' }, 'tool_choice', 'unsupported_value'],
    [{ tools => [$tool], tool_choice => $tool }, 'tool_choice', 'unsupported_value'],
    [{ tool_choice => 'any' }, 'tool_choice'], [{ tool_choice => \1 }, 'tool_choice'],
    [{ parallel_tool_calls => 'no' }, 'parallel_tool_calls'],
    [{ functions => [{ name => 'f' }] }, 'functions', 'unsupported_value'],
    [{ function_call => { name => 'f' } }, 'function_call', 'unsupported_value'],
    [{ messages => [@user, { role => 'tool', content => 'x' }] }, "$message.tool_call_id"],
    [{ messages => [@user, { role => 'tool', content => 'x', tool_call_id => '' }] },
     "$message.tool_call_id"],
    [{ messages => [@user, { role => 'tool', tool_call_id => 'c1' }] }, "$message.content"],
    [{ messages => [@user, { role => 'function', name => 'f', content => 'x' }] }, "$message.role"],
    [{ messages => [@user, { role => 'user', content => 'x', tool_calls => [$call] }] },
     "$message.tool_calls"],
    [{ messages => [@user, { role => 'assistant', content => 'x', tool_calls => {} }] },
     "$message.tool_calls"],
    [{ messages => [@user, { role => 'assistant', content => 'x', reasoning_content => [] }] },
     "$message.reasoning_content"],
    [{ messages => [@user, { role => 'assistant', function_call => { name => 'f' } }] },
     "$message.function_call", 'unsupported_value'],
    [calls(($call) x 1024), "$message.tool_calls"], [calls('f'), "$message.tool_calls[1]"],
    [calls({ %$call, id => undef }), "$message.tool_calls[1].id"],
    [calls({ %$call, id => '' }), "$message.tool_calls[1].id"],
    [calls({ %$call, id => 'x' x 257 }), "$message.tool_calls[1].id"],
    [calls({ %$call, type => 'custom' }), "$message.tool_calls[1].type"],
    [calls({ %$call, function => 'f' }), "$message.tool_calls[1].function"],
    [calls({ %$call, function => { arguments => '{}' } }), "$message.tool_calls[1].function.name"],
    [calls({ %$call, function => { name => 'f' } }), "$message.tool_calls[1].function.arguments"],
    [calls({ %$call, function => { name => 'f', arguments => {} } }),
     "$message.tool_calls[1].function.arguments"],
) {
    my ($members, $place, $code) = @$case;

    for my $stream (\0, \1) {
        is_error(post($server, $chats, { model => 'demo', messages => \@user, stream => $stream,
            %$members }), 400, "$place, stream $$stream: " . substr(json_encode($members), 0, 60),
            type => 'invalid_request_error', param => $place, code => $code);
    }
}


# An object schema that is so many levels deep.
sub deep {
    my ($levels) = @_;

    return $levels == 1 ? {} : { items => deep($levels - 1) };
}


# What the model is shown: members of the body, the prompt's lines.
my $f = '{"function": {"name": "f", "parameters": {"type": "object", "properties": {}}}, '
    . '"type": "function"}';
for my $case (
    [{}, 'tools none'], [{ tools => [] }, 'tools none'], [{ tools => undef }, 'tools none'],
    [{ tools => [$tool] }, "tools [$f]"],
    [{ tools => [$tool], tool_choice => 'auto', parallel_tool_calls => \0 }, "tools [$f]"],
    [{ tools => [$tool], tool_choice => 'none' }, 'tools none'],
    [{ functions => [], function_call => 'none' }, 'tools none'],
    [function(strict => \0, description => undef, parameters => deep(64)), undef],
) {
    my ($members, $expected) = @$case;
    my $prompt = prompt_of({ messages => \@user, %$members });

    is(ref $prompt ? $prompt->{body} : $prompt, "$expected\nuser \"a\"\n>",
       'shown: ' . json_encode($members)) if defined $expected;
    ok(!ref $prompt, 'taken: ' . substr json_encode($members), 0, 60) unless defined $expected;
}

# The client's order of members, its numbers and its words reach the template.
is(prompt_of('{"model":"demo","return_token_ids":true,"max_tokens":1,"messages":[{"role":"user",'
    . '"content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{'
    . '"type":"object","properties":{"z":{"default":1.0},"a":{"default":1,"description":"é<|eos|>"'
    . '}}}}}]}'),
   'tools [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", '
   . '"properties": {"z": {"default": 1.0}, "a": {"default": 1, "description": "é<|eos|>"}}}}}]'
   . "\nuser \"a\"\n>", 'tools as they were sent');

# A conversation with calls and results.
my $calls = [{ %$call, function => { name => 'f', arguments => '{"b": 1.5, "a": [true, "é"]}' } },
             { %$call, id => 'c2', function => { name => 'nobody', arguments => '' } }];
my @answers = ({ role => 'tool', tool_call_id => 'c1', content => '5' },
    { role => 'tool', tool_call_id => 'c2', name => 'g',
      content => [{ type => 'text', text => 'x' }, { type => 'text', text => 'y' }] });
for my $content ({ content => undef }, {}) {
    is(prompt_of({ messages => [@user, { role => 'assistant', %$content, refusal => undef,
        reasoning_content => 'hm', tool_calls => $calls }, @answers] }), <<'END_OF_PROMPT' . '>',
tools none
user "a"
assistant null thought hm calls c1 f b=1.5 a=[true, "é"] calls c2 nobody
tool "5" answers c1
tool "x\ny" answers c2
END_OF_PROMPT
       'calls and results, content ' . json_encode($content));
}
is(prompt_of({ messages => [{ role => 'developer', content => 'd' }, { role => 'assistant',
    content => 'b', reasoning => 'why' }] }),
   "tools none\nsystem \"d\"\nassistant \"b\" thought why\n>", 'developer and reasoning');

# A template's error is the request's.
is_error(prompt_of({ messages => [@user, { role => 'assistant', content => '', tool_calls => [
    { %$call, function => { name => 'f', arguments => 'no JSON' } }] }] }), 400,
    'arguments that are no object', param => 'messages', type => 'invalid_request_error');

# A file that has changed is taken up by a reload, as another path is.
my $engine = $server->engine_pid;
$server->signal('HUP');
ok(wait_until(10, sub { !grep { $_->{title} =~ /shutting down/ } $server->processes }), 'reloaded');
is($server->engine_pid, $engine, 'the same file, the same engine');
for my $round (['chat.jinja', 'first'], ['other.jinja', 'other']) {
    my ($name, $word) = @$round;
    my $before = $server->engine_pid;

    $server->write_file($name, "{{ bos_token }}$word {{ messages[0].content }}");
    $server->write_config(model_block => "chat_template $name;");
    $server->signal('HUP');
    ok(wait_until(15, sub { my $pid = $server->engine_pid; $pid && $pid != $before }),
       "$name: another engine");
    $server->wait_ready;
    is(prompt_of({ messages => \@user }), "$word a", "$name: its template");
    is_error(prompt_of({ messages => \@user, tools => [$tool] }), 400, "$name: no place for tools",
             param => 'tools', type => 'invalid_request_error');
}

# One that is no template is told by the engine.
$server->write_file('broken.jinja', "a\n{% if %}");
$server->write_config(model_block => 'chat_template broken.jinja;');
my $fault = qr{broken\.jinja: template line 2: expected an expression};
$server->expect($fault);
$server->signal('HUP');
ok(wait_until(15, sub { $server->log_text =~ $fault }), 'a broken template');
is_error(post($server, $chats, { model => 'demo', messages => \@user }), 503, 'is not served');

finish();
