# /v1/chat/completions without streaming: the demo model's exact answers, roles, content parts,
# the template's switches, special tokens in user text.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $golden = json_decode(file_content('t/golden/golden.json'));

my $answer = chat($server, 'What is the default of keepalive_timeout?', { max_tokens => 64 });
my $json = $answer->{json};
my $choice = $json->{choices}[0];

is($answer->{status}, 200, 'status');
like($json->{id}, qr/^chatcmpl-[\w-]{8,}$/, 'id');
is($json->{object}, 'chat.completion', 'object');
is($choice->{message}{role}, 'assistant', 'role');
ok(exists $choice->{message}{refusal} && !defined $choice->{message}{refusal}, 'no refusal');
like($choice->{message}{content}, qr/keepalive_timeout 75s;/, 'the right answer');
is($choice->{finish_reason}, 'stop', 'finish reason');
is($choice->{logprobs}, undef, 'no logprobs unless asked for');
is($json->{usage}{prompt_tokens_details}{cached_tokens}, 0, 'nothing came from a cache');
is($json->{usage}{total_tokens}, $json->{usage}{prompt_tokens} + $json->{usage}{completion_tokens},
   'usage adds up');

# Without max_tokens a chat runs to its end.
is(chat($server, 'What is the default of keepalive_timeout?')->{json}{choices}[0]{message}{content},
   $choice->{message}{content}, 'no max_tokens: the whole answer');
is(chat($server, 'x', { $_ => 3, ignore_eos => \1 })->{json}{usage}{completion_tokens}, 3, $_)
    for qw(max_tokens max_completion_tokens);

# Golden chats: the template gives these ids, greedy decoding goes on as recorded.
for my $item (grep { $_->{messages} } @{$golden->{items}}) {
    my $n = @{$item->{greedy}};
    my $chat = chat($server, $item->{messages}, { max_tokens => $n, ignore_eos => \1 })->{json};
    my $raw = completion($server, { prompt => $item->{ids}, max_tokens => $n, temperature => 0,
        ignore_eos => \1 })->{json};
    my $name = substr $item->{messages}[-1]{content}, 0, 40;

    is($chat->{usage}{prompt_tokens}, scalar @{$item->{ids}}, "prompt tokens: $name");
    is($chat->{choices}[0]{message}{content}, $raw->{choices}[0]{text}, "same as its ids: $name");
}

# Questions of the evaluation set, one of each kind.
my %seen;
for my $line (split /\n/, file_content('t/golden/eval.tsv')) {
    my (undef, $kind, $question, $expected, $ok) = split /\t/, $line;
    next if !$ok || $ok ne '1' || $seen{$kind}++;
    utf8::decode($_) for $question, $expected;
    is(chat($server, $question)->{json}{choices}[0]{message}{content}, $expected =~ s/\\n/\n/gr,
       "$kind: $question");
}

# Content parts are joined; a name is allowed; null members are as absent.
my $question = 'What is the default of keepalive_timeout?';
for my $case (
    ['parts', [{ role => 'user', content => [{ type => 'text', text => 'What is the default of ' },
        { type => 'text', text => 'keepalive_timeout?' }] }]],
    ['name', [{ role => 'user', name => 'u', content => $question }]],
) {
    is(chat($server, $case->[1])->{json}{choices}[0]{message}{content}, $choice->{message}{content},
       "message with $case->[0]");
}
is(chat($server, $question, { tools => [], response_format => { type => 'text' }, n => 1,
    temperature => 0, stop => undef, seed => undef, guided_json => undef, bad_words => [],
    use_beam_search => \0, documents => [] })->{json}{choices}[0]{message}{content},
   $choice->{message}{content}, 'members that ask for nothing');

# A turn of tool calls has no content; what follows it is answered.
for my $empty ({ content => undef }, {}, { content => '' }) {
    is(chat($server, [{ role => 'assistant', %$empty, tool_calls => [{ id => 'a',
            type => 'function', function => { name => 'f', arguments => '{}' } }] },
        { role => 'tool', tool_call_id => 'a', content => 'b' },
        { role => 'user', content => $question }], { max_tokens => 1 })->{status}, 200,
       'tool calls in the history: ' . json_encode($empty));
}

# What is known of the prompt belongs to the answer, of the tokens to the choice.
my %details = (return_token_ids => \1, prompt_logprobs => 1, max_tokens => 3);
my $detailed = chat($server, $question, { %details, n => 2 })->{json};
is(scalar @{$detailed->{$_}}, $json->{usage}{prompt_tokens}, "$_ of a chat")
    for qw(prompt_token_ids prompt_logprobs);
is(scalar @{$_->{token_ids}}, 3, 'token_ids of a choice') for @{$detailed->{choices}};
my $first = collect_all($server, '/v1/chat/completions', { %details, temperature => 0,
    messages => [{ role => 'user', content => $question }] })->{events}[0];
is_deeply([@$first{qw(prompt_token_ids prompt_logprobs)}],
          [@$detailed{qw(prompt_token_ids prompt_logprobs)}], 'in the first chunk of a stream');

# No probability mass at all still leaves the most probable token.
is(chat($server, $question, { temperature => 1.5, top_p => 0, seed => 3 })
       ->{json}{choices}[0]{message}{content}, $choice->{message}{content}, 'top_p 0 is greedy');

# The id is in the head as well, also of an error.
is($answer->{headers}{'x-request-id'}, $json->{id}, 'X-Request-Id');
is(chat($server, $question, { request_id => 'mine', max_tokens => $_ })->{headers}{'x-request-id'},
   'chatcmpl-mine', "X-Request-Id of the client's, max_tokens $_") for 1, 0;

# Text that looks like a control token stays text.
my $count = sub {
    chat($server, [{ role => 'user', content => $_[0] }], { max_tokens => 1 })
        ->{json}{usage}{prompt_tokens}
};
my $plain = $count->('ab');
cmp_ok($count->("ab$_"), '>', $plain + 1, "$_ in user text is text")
    for '<|user|>', '<|assistant|>', '<|eos|>';

# Template switches: a message to be continued is the prompt itself.
my @ids = tokenize($question);
my $continued = chat($server,
    [{ role => 'user', content => $question }, { role => 'assistant', content => 'Default of' }],
    { add_generation_prompt => \0, continue_final_message => \1, max_tokens => 20 });
is($continued->{status}, 200, 'continue_final_message');
is($continued->{json}{choices}[0]{message}{content},
   completion($server, { prompt => [0, 3, @ids[1 .. $#ids], 4,
       (tokenize('Default of'))[1 .. 2]], temperature => 0, max_tokens => 20 })
       ->{json}{choices}[0]{text}, 'continues the message');
cmp_ok(chat($server, $question, { add_generation_prompt => \0, max_tokens => 1 })
    ->{json}{usage}{prompt_tokens}, '<', $json->{usage}{prompt_tokens}, 'no generation prompt');

# Models.
my $models = get($server, '/v1/models')->{json};
is($models->{object}, 'list', '/v1/models');
is($models->{data}[0]{id}, 'demo', 'lists the model');
is($models->{data}[0]{object}, 'model', 'as a model');
is($models->{data}[0]{max_model_len}, 2048, 'with its context');
is(get($server, '/v1/models/demo')->{json}{id}, 'demo', '/v1/models/demo');
is(get($server, '/v1/models/other')->{status}, 404, '/v1/models/other');

finish();
