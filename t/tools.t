# Calls of tools and reasoning in answers, through nginx, in one piece and streamed: a tiny model
# per format says what it is told to (t/lib/Moe/Chain.pm).

use lib 't/lib';
use Moe::Chain;
use Moe::Test;
use File::Temp qw(tempdir);

my $directory = tempdir('moe-tools-XXXXXX', TMPDIR => 1, CLEANUP => 1);
chmod 0755, $directory;

my @tools = ({ type => 'function', function => { name => 'f', parameters => { type => 'object',
    properties => { s => { type => 'string' }, n => { type => 'integer' } } } } });
my $say = q({% if tools %}{{ tools | tojson }}MARKERS{% endif %}<|start|>assistant)
    . q({% for m in messages %}{{ m.content }}{% endfor %}{% if think %}<think>{% endif %});

sub template { return $say =~ s/MARKERS/join '', @_/er }

# Cuts a text into tokens of at most four characters, markers being one token each.
sub cut {
    my ($text, @markers) = @_;
    my $markers = join '|', map { quotemeta } @markers;

    return $text =~ /\G($markers|(?:(?!$markers).){1,4})/gs;
}

my @think = ('<think>', '</think>');
my @hermes = ('<tool_call>', '</tool_call>', @think);
my ($calls, $calls_end, $call, $call_end, $sep) = map { "<｜tool▁$_｜>" }
    qw(calls▁begin calls▁end call▁begin call▁end sep);
my @deepseek = ($calls, $calls_end, $call, $call_end, $sep, @think);
my @kimi = (map({ "<|tool_$_|>" } qw(calls_section_begin calls_section_end call_begin call_end
    call_argument_begin)), @think);
my @glm = (@hermes, '<arg_key>', '</arg_key>', '<arg_value>', '</arg_value>');
my @minimax = ('<minimax:tool_call>', '</minimax:tool_call>', @think);
my @mistral = ('[TOOL_CALLS]', '[ARGS]', @think);
my @harmony = map { "<|$_|>" } qw(start channel constrain message end return call);

# name, parser, markers, which of them are special, text, content, reasoning, calls
my @formats = (
    ['hermes', \@hermes, [],
     "<think>\nhm, so\n</think>\n\nLet me.\n<tool_call>\n{\"name\": \"f\", "
     . "\"arguments\": {\"s\": \"é\\n\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
     'Let me.', 'hm, so', [['f', '{"s": "é\n"}'], ['g', '{}']]],
    ['qwen3_coder', \@hermes, [],
     "<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
     . "</function>\n</tool_call>", undef, undef, [['f', '{"s":"12","n":12}']]],
    ['glm', \@glm, [],
     "\n<think>hm</think>Ok.\n<tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value>"
     . "<arg_key>n</arg_key><arg_value>7</arg_value></tool_call>",
     'Ok.', 'hm', [['f', '{"s":"1","n":7}']]],
    ['minimax', \@minimax, [],
     "<think>hm</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n"
     . "<parameter name=\"n\">3</parameter>\n</invoke>\n</minimax:tool_call>", undef, 'hm', [['f', '{"n":3}']]],
    ['deepseek', \@deepseek, [],
     "<think>hm</think>Ok.$calls${call}f${sep}{\"n\": 1}$call_end$calls_end", 'Ok.', 'hm',
     [['f', '{"n": 1}']]],
    ['kimi', \@kimi, [@kimi[0 .. 4]],
     "<think>hm</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
     . "<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
     undef, 'hm', [['f', '{"n": 1}', 'functions.f:0']]],
    ['mistral', \@mistral, ['[TOOL_CALLS]', '[ARGS]'],
     "[TOOL_CALLS]f[ARGS]{\"s\": \"}\"}", undef, undef, [['f', '{"s": "}"}']]],
    ['harmony', \@harmony, \@harmony,
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>"
     . "commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>", undef, 'hm', [['f', '{"n": 1}']]],
);

# More answers: one that a stop string and a limit cut, one that is no call, one with
# tokens that only look like markers, one that takes long, one whose reasoning the prompt opens.
my %more = (hermes => {
    broken => ['<tool_call>', '{"na', 'me":', ' oh', '</tool_call>', ' so'],
    spelt => ['<tool_', 'call>', '{"name":"f"}', '</tool', '_call>'],
    opened => ['th', 'ought', '</think>', "\n\n", 'said'],
    long => ['<think>', map({ "w$_ " } 1 .. 400), '</think>', "\n\t", '<tool_call>',
             '{"name":', '"f"}', '</tool_call>', "\n "],
}, harmony => {
    empty => ['<|channel|>', 'final to=functions.g', '<|message|>', '<|call|>'],
});

my (%members, %sign);
for my $format (@formats) {
    my ($name, $markers, $special, $text) = @$format;
    my %answers = (call => [cut($text, @$markers)], %{$more{$name} // {}});

    $sign{$name} = template(@$markers, $name eq 'qwen3_coder' ? '<function=' : ());
    $members{$name} = write_chain("$directory/$name", template => $sign{$name},
        answers => \%answers, special => $special, ends => ['<|call|>', '<|return|>'],
        after => { opened => ['<think>'] });
}


my ($first, @others) = map { $_->[0] } @formats;
my $server = server(
    model => "$directory/$first", context => 4096, model_block => "alias $first; prefix_cache off;",
    server => 'location /any/ { moe_pass any; }',
    http => join('', map {
            "moe_model $_ $directory/$_ { threads 1; prefix_cache off; }\n"
        } @others) . 'log_format finish "$request_uri $moe_finish_reason";
               access_log %PREFIX%/finish.log finish;');
ok(wait_until(30, sub { get($server, '/any/health')->{status} == 200 }), 'all models serve');

my $uri = '/any/v1/chat/completions';

sub body {
    my ($model, $answer, %more) = @_;

    return { model => $model, messages => [{ role => 'user', content => "\@$answer" }],
             tools => \@tools,
             %{$members{$model}{$answer}}, %more };
}

# The same form of an answer in one piece and of a stream's deltas, and both must have it.
sub seen {
    my ($content, $reasoning, $calls, $finish) = @_;

    return { content => $content, reasoning => $reasoning, calls => $calls, finish => $finish };
}

sub whole {
    my ($choice) = @_;
    my $message = $choice->{message};

    return seen(@$message{qw(content reasoning_content)}, [map {
        is($_->{type}, 'function', 'type of a call');
        [@{$_->{function}}{qw(name arguments)}, $_->{id}]
    } @{$message->{tool_calls} // []}], $choice->{finish_reason});
}

sub streamed {
    my ($result, $index) = @_;
    my ($content, $reasoning, @calls);

    for my $choice (grep { $_->{index} == $index } map { @{$_->{choices}} } @{$result->{events}}) {
        my $delta = $choice->{delta};

        $content .= $delta->{content} if length($delta->{content} // '');
        $reasoning .= $delta->{reasoning_content} if defined $delta->{reasoning_content};
        for my $call (@{$delta->{tool_calls} // []}) {
            my $function = $call->{function};

            if (exists $call->{id}) {
                is($call->{index}, scalar @calls, 'index of a call');
                push @calls, [$function->{name}, '', $call->{id}];
            }
            $calls[$call->{index}][1] .= $function->{arguments};
        }
    }
    is(scalar @{$result->{finishes}{$index}}, 1, 'one end');
    return seen($content // (@calls ? undef : ''), $reasoning, \@calls,
                $result->{finishes}{$index}[0]);
}

# Asks in both ways; what both saw and their usage.
sub ask {
    my ($name, $body) = @_;
    my $answer = post($server, $uri, $body);
    my $n = $body->{n} // 1;
    my $result = collect_all($server, $uri, { %$body, stream_options => { include_usage => \1 } });
    my @whole = map { whole($_) } @{$answer->{json}{choices}};

    is($answer->{status}, 200, "$name: status") or diag($answer->{body});
    is_deeply([map { streamed($result, $_) } 0 .. $n - 1], \@whole, "$name: streamed");
    is_deeply($result->{usage}, $answer->{json}{usage}, "$name: usage");
    is_deeply([map { @{($_->{logprobs} // {})->{content} // []} } grep { $_->{index} == 0 }
               map { @{$_->{choices}} } @{$result->{events}}],
              ($answer->{json}{choices}[0]{logprobs} // {})->{content} // [],
              "$name: log-probabilities");
    return { %{$whole[0]}, all => \@whole, usage => $answer->{json}{usage},
             json => $answer->{json} };
}

sub expect {
    my ($name, $body, $content, $reasoning, $calls, $finish) = @_;
    my $got = ask($name, $body);
    my %ids;

    is($got->{content}, $content, "$name: content");
    is($got->{reasoning}, $reasoning, "$name: reasoning");
    is_deeply([map { [@$_[0, 1]] } @{$got->{calls}}], [map { [@$_[0, 1]] } @$calls],
              "$name: calls");
    is($got->{finish}, $finish, "$name: finish reason");
    is(scalar(grep { !$ids{$_->[2]}++ } @{$got->{calls}}), scalar @$calls, "$name: ids are unique");
    return $got;
}

for my $format (@formats) {
    my ($name, undef, undef, undef, $content, $reasoning, $calls) = @$format;
    my $got = expect($name, body($name, 'call'), $content, $reasoning, $calls, 'tool_calls');

    is($got->{calls}[0][2], $calls->[0][2], "$name: id") if $calls->[0][2];
    like($got->{calls}[0][2], qr/^[0-9A-Za-z]{9}$/, "$name: id") if !$calls->[0][2];
}

# The token that ends the answer ends the call, too: without it this would be none.
expect('a call of nothing', body('harmony', 'empty'), undef, undef, [['g', '{}']], 'tool_calls');
expect('not ended', body('harmony', 'empty', max_tokens => 3), '', undef, [], 'length');

# What a request may change.
my ($name, undef, undef, $text, $content, $reasoning, $two) = @{$formats[0]};
my ($tail) = $text =~ m{</think>\n\n(.*)}s;
my $got = expect('again', body($name, 'call'), $content, $reasoning, $two, 'tool_calls');
my @said = (@{$members{$name}{call}{allowed_token_ids}});

is_deeply([map { $_->[2] } @{$got->{calls}}],
          [map { $_->[2] } @{ask('once more', body($name, 'call'))->{calls}}],
          'the same request, the same ids');
my @other = map { { role => 'user', content => $_ } } 'And', '@call';
isnt(ask('another', body($name, 'call', messages => \@other))->{calls}[0][2], $got->{calls}[0][2],
     'another prompt, other ids');
cmp_ok($got->{usage}{completion_tokens_details}{reasoning_tokens}, '>', 3, 'reasoning is counted');
cmp_ok($got->{usage}{completion_tokens_details}{reasoning_tokens}, '<',
       $got->{usage}{completion_tokens} - 20, 'calls are not');
expect('no reasoning', body($name, 'call', include_reasoning => \0), $content, undef, $two,
       'tool_calls');
expect('one call', body($name, 'call', parallel_tool_calls => \0), $content, $reasoning,
       [$two->[0]], 'tool_calls');
expect('no tools', body($name, 'call', tools => undef), $tail, $reasoning, [], 'stop');
expect('tool_choice none', body($name, 'call', tool_choice => 'none'), $tail, $reasoning, [],
       'stop');
expect('a stop string in a call', body($name, 'call', stop => ['"arg']),
       "Let me.\n<tool_call>\n{\"name\": \"f\", ", $reasoning, [], 'stop');
expect('a stop string behind a call', body($name, 'call', stop => ['"g"']),
       "Let me.<tool_call>\n{\"name\": ", $reasoning, [$two->[0]], 'tool_calls');
expect('no call', body($name, 'broken'), '<tool_call>{"name": oh</tool_call> so', undef,
       [], 'stop');
expect('spelt out', body($name, 'spelt'), '<tool_call>{"name":"f"}</tool_call>', undef, [], 'stop');
expect('reasoning that the prompt opens',
       body($name, 'opened', chat_template_kwargs => { think => \1 }), 'said', 'thought', [],
       'stop');
expect('reasoning that it does not open', body($name, 'opened'), "thought</think>\n\nsaid", undef,
       [], 'stop');

# Several choices, with log-probabilities: a record for each token, whatever it became.
my $several = ask('two choices', body($name, 'call', n => 2, logprobs => \1, top_logprobs => 1));
is_deeply($several->{all}[1], $several->{all}[0], 'two choices: the same');
is(scalar @{$several->{json}{choices}[0]{logprobs}{content}},
   $several->{usage}{completion_tokens} / 2, 'log-probabilities of all tokens');
is(join('', map { pack 'C*', @{$_->{bytes}} } @{$several->{json}{choices}[0]{logprobs}{content}}),
   do { utf8::encode(my $bytes = "$text<|eos|>"); $bytes }, 'which are the answer');

# Every limit: what has come of the answer is there, and nothing of a call that is not whole.
my $tokens = $got->{usage}{completion_tokens};
for my $limit (1 .. $tokens) {
    my $cut = ask("max_tokens $limit", body($name, 'call', max_tokens => $limit));
    my $n = @{$cut->{calls}};

    is($cut->{finish}, $limit < $tokens ? 'length' : 'tool_calls', "max_tokens $limit: finish");
    is_deeply([map { [@$_[0, 1]] } @{$cut->{calls}}], [@$two[0 .. $n - 1]],
              "max_tokens $limit: calls");
}

# An engine that dies in the middle of reasoning: the answer goes on, call and id are the same.
my $long = ask('long', body($name, 'long'));
is($long->{usage}{completion_tokens_details}{reasoning_tokens}, 402, 'long: reasoning');
is(scalar @{$long->{calls}}, 1, 'long: a call');
my $client = hold($server, body($name, 'long', stream_options => { include_usage => \1 }),
                  uri => '/v1/chat/completions');
$server->expect(qr/exited on signal/);
$server->signal('KILL', $server->engine_pid);
my $rest = collect($client);
$client->close;
is_deeply(streamed($rest, 0), { map { $_ => $long->{$_} } qw(content reasoning calls finish) },
          'an engine that died: the same answer');
is($rest->{usage}{completion_tokens_details}{reasoning_tokens}, 402, 'and as many tokens');

ok(wait_until(10, sub {
    file_content("$server->{prefix}/finish.log") =~ /completions tool_calls$/m
}), 'the variable has the reason');

finish();
