# What a client can do wrong: the status, the error object and the field at fault; the same when
# "stream" is true; never a 5xx, never a large echo.

use lib 't/lib';
use Moe::Test;

my $server = server(context => 128);
my ($completions, $chats) = ('/v1/completions', '/v1/chat/completions');
my @user = (messages => [{ role => 'user', content => 'a' }]);

# Each member with a value of the wrong type or range: 400 naming it, also in a stream.
my %wrong = (
    max_tokens => ['x', -1, 1.5, 1e30],
    temperature => ['hot', -0.1],
    top_p => ['x', 1.5, -1],
    top_k => ['x', -2],
    min_p => ['x', 2],
    n => [0, 129, 1.5, 'x'],
    best_of => [0, 129, 'x'],
    seed => ['x', 1.5],
    stop => [5, ['a', 5], [map { "$_" } 1 .. 17], 'x' x 5000],
    presence_penalty => ['x', 3],
    frequency_penalty => ['x', -3],
    repetition_penalty => ['x', 0],
    logit_bias => [5, { x => 1 }, { 5 => 101 }, { 5 => 'x' }, { 2048 => 1 }, { '-1' => 1 }],
    stop_token_ids => [5, ['x'], [2048], [-1]],
    allowed_token_ids => [['x'], [2048]],
    min_tokens => ['x', -1],
    ignore_eos => ['yes'],
    stream => ['yes'],
    response_format => [{ type => 'json_object' }, { type => 'json_schema' }, 'text'],
    # What cannot be done is refused under all of its names, never silently left out.
    (map { $_ => [{ type => 'object' }, 'a+', ['a']] } qw(structured_outputs guided_json
        guided_regex guided_choice guided_grammar grammar json_schema bad_words)),
    use_beam_search => [\1],
);
for my $member (sort keys %wrong) {
    for my $value (@{$wrong{$member}}) {
        my $shown = substr json_encode($value), 0, 20;
        for my $stream ($member eq 'stream' ? () : (\0, \1)) {
            is_error(completion($server, { prompt => 'a', stream => $stream, $member => $value }),
                400, "$member $shown, stream $$stream",
                param => $member, type => 'invalid_request_error');
        }
        is_error(completion($server, { prompt => 'a', $member => $value }), 400, "$member $shown",
                 param => $member) if $member eq 'stream';
    }
}

for my $case (
    # route, members, member at fault
    [$completions, {}, 'prompt'],
    [$completions, { prompt => undef }, 'prompt'],
    [$completions, { prompt => 5 }, 'prompt'],
    [$completions, { prompt => {} }, 'prompt'],
    [$completions, { prompt => [] }, 'prompt'],
    [$completions, { prompt => [[]] }, 'prompt'],
    [$completions, { prompt => [1, 'a'] }, 'prompt'],
    [$completions, { prompt => [2048] }, 'prompt'],
    [$completions, { prompt => [-1] }, 'prompt'],
    [$completions, { prompt => 'a', logprobs => 21 }, 'logprobs'],
    [$completions, { prompt => 'a', logprobs => -1 }, 'logprobs'],
    [$completions, { prompt => 'a', suffix => 'b' }, 'suffix'],
    [$completions, { prompt => 'a', stream_options => { include_usage => \1 } }, 'stream_options'],
    [$chats, {}, 'messages'],
    [$chats, { messages => [] }, 'messages'],
    [$chats, { messages => 'a' }, 'messages'],
    [$chats, { messages => [5] }, undef],
    [$chats, { messages => [{ role => 'user' }] }, undef],
    [$chats, { messages => [{ role => 'wizard', content => 'a' }] }, undef],
    [$chats, { messages => [{ role => 'user', content => 5 }] }, undef],
    [$chats, { messages => [{ role => 'user', content => [{ type => 'image_url' }] }] }, undef],
    [$chats, { @user, logprobs => 5 }, 'logprobs'],
    [$chats, { @user, logprobs => \1, top_logprobs => 21 }, 'top_logprobs'],
    [$chats, { @user, top_logprobs => 2 }, 'top_logprobs'],
    [$chats, { @user, chat_template => '{{ messages }}' }, 'chat_template'],
    [$chats, { messages => [{ role => 'assistant', content => undef }] }, 'messages[0].content'],
    [$chats, { messages => [{ role => 'assistant', tool_calls => [] }] }, 'messages[0].content'],
    [$chats, { messages => [{ role => 'assistant', tool_calls => 5 }] }, 'messages[0].tool_calls'],
    [$chats, { messages => [@{$user[1]}, { role => 'tool', content => 'a', tool_call_id => 5 }] },
     'messages[1].tool_call_id'],
    [$chats, { messages => [{ role => 'user', content => 'a', name => [] }] }, 'messages[0].name'],
    [$chats, { @user, response_format => { type => 'json_object' } }, 'response_format'],
    [$chats, { @user, tools => [{ type => 'function', function => { name => 'f' } }] }, 'tools'],
) {
    my ($uri, $members, $param) = @$case;
    my $shown = substr json_encode($members), 0, 60;
    for my $stream ($members->{stream_options} ? \0 : (\0, \1)) {
        is_error(post($server, $uri, { model => 'demo', stream => $stream, %$members }), 400,
                 "$uri $shown, stream $$stream", type => 'invalid_request_error',
                 ($param ? (param => $param) : ()));
    }
}

# Bodies that are no request at all.
for my $case (
    ['empty', ''], ['not JSON', 'prompt=a'], ['cut short', '{"prompt": "a'], ['an array', '[]'],
    ['a string', '"a"'], ['trailing garbage', '{"prompt": "a"} x'],
    ['deep', '{"a":' x 5000 . '1' . '}' x 5000], ['not UTF-8', "{\"prompt\": \"\xff\xfe\"}"],
    ['a lone surrogate', '{"prompt": "\ud800"}'], ['half a pair', '{"prompt": "\ud800a"}'],
    ['a low surrogate', '{"prompt": "a\udc00"}'],
    ['a lone surrogate in a message',
     '{"messages": [{"role": "user", "content": "\ud83d"}]}', $chats],
    ['garbage', 'x' x 60_000],
) {
    my ($name, $body, $uri) = @$case;
    is_error(post($server, $uri // $completions, $body), 400, $name,
             type => 'invalid_request_error');
}
cmp_ok(completion($server, { prompt => "a\0b", max_tokens => 1 })->{status}, '<', 500,
       'a zero byte in the prompt');

# Numbers that no double and no integer of 64 bits can hold name their field.
my $huge = '9' x 40;
for my $case (
    ['{"prompt": "a", "max_tokens": 1e999}', 'max_tokens'],
    ["{\"max_tokens\": 1, \"seed\": $huge, \"prompt\": \"a\"}", 'seed'],
    ["{\"prompt\": [1, $huge]}", 'prompt'],
    ["{\"user\": \"\\\"n\\\":{\", \"logit_bias\": {\"top_p\": -1e999}}", 'logit_bias'],
    ["{\"prompt\": \"a\", \"unknown\": $huge}", undef],
    ["[\"n\", $huge]", undef],
) {
    my ($body, $param) = @$case;
    is_error(post($server, $completions, $body), 400, $body, type => 'invalid_request_error',
             param => $param, code => $param ? undef : 'invalid_json');
}

# More completions than the engine would ever take at a time.
my $small = server(model_block => 'batch_sequences 2; queue 3;');
for my $case (
    # members, param; none: served
    [{ prompt => 'a', n => 5 }], [{ prompt => 'a', n => 6 }, 'n'],
    [{ prompt => ['a', 'b'], n => 3 }, 'n'], [{ prompt => [('a') x 6] }, 'prompt'],
    [{ prompt => 'a', n => 2, best_of => 6 }, 'best_of'],
) {
    my ($members, $param) = @$case;
    my $answer = completion($small, { %$members, max_tokens => 1 });
    $param ? is_error($answer, 400, json_encode($members), param => $param,
                      type => 'invalid_request_error')
           : is($answer->{status}, 200, json_encode($members));
}

# Unknown things and wrong methods.
is_error(post($server, $completions, { model => 'other', prompt => 'a' }), 404, 'unknown model',
         code => 'model_not_found');
is_error(post($server, $chats, { model => 'x' x 60_000, @user }), 400, 'a long model name',
         param => 'model');
is_error(get($server, '/v1/models/other'), 404, 'no such model', code => 'model_not_found',
         message => 'the model "other" does not exist');
is_error(get($server, '/v1/nothing'), 404, 'no such route');
is_error(get($server, $_), 405, "GET $_") for $completions, $chats;
is_error(post($server, '/v1/models', '{}'), 405, 'POST /v1/models');
is_error(post($server, $completions, { prompt => 'x' x 1_100_000 }), 413, 'a large body',
         type => 'invalid_request_error', code => 'request_too_large');

# The context is a sharp border.
for my $size (128, 129, 500) {
    is_error(completion($server, { prompt => [(5) x $size], max_tokens => 1 }), 400,
        "$size prompt tokens", code => 'context_length_exceeded') for 1 .. 3;
}
is(completion($server, { prompt => [(5) x 127], max_tokens => 1 })->{status}, 200,
   'one token of room');
is_error(completion($server, { prompt => [(5) x 127], max_tokens => 2 }), 400, 'one token too few',
    code => 'context_length_exceeded');
is_error(chat($server, 'word ' x 400), 400, 'a long chat', code => 'context_length_exceeded');
my $rest = chat($server, 'a', { ignore_eos => \1 })->{json};
is($rest->{usage}{total_tokens}, 128, 'without max_tokens the context is filled');
is($rest->{choices}[0]{finish_reason}, 'length', 'and that is the end');

# After all this the server still works.
is(completion($server, { prompt => 'a', max_tokens => 1 })->{status}, 200, 'still serves');
ok(idle($server), 'the engine is idle');

finish();
