# Hostile input: whatever comes as a body, and however it comes, is answered with a status and a
# small error object, the connection goes on where HTTP allows it, and workers and engine live.

use lib 't/lib';
use Moe::Test;

my $server = server(main => 'thread_pool default threads=2;', server => <<'END');
location /large/ {
    moe_pass demo;
    client_max_body_size 200m;
}

location /impatient/ {
    moe_pass demo;
    client_body_timeout 500ms;
}
END
ok(wait_until(10, sub { $server->worker_pids == 2 }), 'two workers');
my @workers = $server->worker_pids;
my $engine = $server->engine_pid;
my ($completions, $chats) = ('/v1/completions', '/v1/chat/completions');
my %least = (
    $completions => '"prompt":"a","max_tokens":1',
    $chats => '"messages":[{"role":"user","content":"a"}],"max_tokens":1',
);
my $client = client($server);

# On one connection throughout: an error must not end it.
sub send_to {
    my ($uri, $body, %headers) = @_;

    return $client->request('POST', $uri, $body, headers => \%headers);
}

# Every known field, the kinds of JSON values it takes, and where it is known.
my @fields = (
    [model => 's'], [request_id => 's'], [prompt => 'sl', $completions], [messages => 'l', $chats],
    [stream => 'b'], [stream_options => 'o'], [max_tokens => 'i'],
    [max_completion_tokens => 'i', $chats], [min_tokens => 'i'], [ignore_eos => 'b'],
    [stop => 'sl'], [stop_token_ids => 'l'], [include_stop_str_in_output => 'b'],
    [temperature => 'if'], [top_p => 'if'], [top_k => 'i'], [min_p => 'if'],
    [repetition_penalty => 'if'], [presence_penalty => 'if'], [frequency_penalty => 'if'],
    [seed => 'i'], [logit_bias => 'o'], [allowed_token_ids => 'l'], [priority => 'i'],
    [echo => 'b', $completions], [logprobs => 'i', $completions], [logprobs => 'b', $chats],
    [top_logprobs => 'i', $chats], [prompt_logprobs => 'i'], [return_token_ids => 'b'],
    [skip_special_tokens => 'b'], [add_special_tokens => 'b', $completions],
    [add_generation_prompt => 'b', $chats], [continue_final_message => 'b', $chats],
    [chat_template_kwargs => 'o', $chats], [reasoning_effort => 's', $chats], [n => 'i'],
    [best_of => 'i', $completions], [suffix => 's', $completions], [tools => 'l', $chats],
    [user => 's'], [parallel_tool_calls => 'b', $chats], [include_reasoning => 'b', $chats],
    [tool_choice => 'so', $chats], [response_format => 'o'], [structured_outputs => 'o'],
);
my %values = (b => 'true', i => '7', f => '1.5', s => '"x"', l => '[{}]', o => '{"x":[]}');
for my $row (@fields) {
    my ($field, $kinds, @uris) = @$row;
    for my $uri (@uris ? @uris : ($completions, $chats)) {
        for my $kind (grep { index($kinds, $_) < 0 } sort keys %values) {
            is_error(send_to($uri, "{$least{$uri},\"$field\":$values{$kind}}"), 400,
                     "$uri: $field: $values{$kind}", param => $field);
        }
        next if $field =~ /^(?:prompt|messages)$/;
        is(send_to($uri, "{$least{$uri},\"$field\":null}")->{status}, 200, "$uri: $field: null");
    }
}

# Not JSON, or not an object.  Of an error in the text only the place is told.
my $chat_prefix = '{"messages":[{"role":"user","content":';
for my $case (
    ['nothing', ''], ['a space', ' '], ['null', 'null'], ['a list', '[]'], ['a string', '"a"'],
    ['a number', '5'], ['a brace', '{'], ['a NUL', "\0"], ['NULs', "\0" x 70_000],
    ['a byte order mark', "\xef\xbb\xbf{$least{$completions}}"],
    ['two objects', "{$least{$completions}}{}"], ['single quotes', "{'prompt':'a'}"],
    ['a last comma', '{"prompt":"a",}'], ['a form', 'prompt=a&max_tokens=5'],
    ['NaN', '{"prompt":"a","temperature":NaN}'], ['Infinity', '{"prompt":"a","top_p":Infinity}'],
    ['a NUL after it', "{$least{$completions}}\0"], ['a NUL in a string', "{\"prompt\":\"a\0b\"}"],
    ['a line end in a string', "{\"prompt\":\"a\nb\"}"], ['a NUL in a key', '{"prompt\u0000":"a"}'],
    ['a bad escape', '{"prompt":"\x41"}'], ['a short escape', '{"prompt":"\u12"}'],
    map({ ["surrogates $_", "{\"prompt\":\"$_\"}"], ["surrogates $_ in a message",
          "$chat_prefix\"$_\"}]}"], ["surrogates $_ in a key", "{\"$_\":1,$least{$completions}}"] }
        '\ud800', '\udc00', '\ud800a', '\ud800\ud800', '\udc00\ud800', 'a\udfff'),
    map({ ['bytes ' . unpack('H*', $_), "{\"prompt\":\"$_\"}"],
          ['bytes ' . unpack('H*', $_) . ' in a key', "{\"$_\":1,$least{$completions}}"] }
        "\xff", "\xfe\xff", "\x80", "\xc3", "\xc0\x80", "\xe0\x80\xaf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80"),
    map({ my $levels = $_;
          map { ["$levels deep: $_->[0]", "{\"prompt\":\"a\",\"x\":$_->[1]}"],
                ["$levels deep prompt: $_->[0]", "{\"prompt\":$_->[1]}"],
                ["$levels deep content: $_->[0]", "$chat_prefix$_->[1]}]}"] }
              ['lists', '[' x $levels . ']' x $levels],
              ['objects', '{"a":' x $levels . '1' . '}' x $levels],
              ['open lists', '[' x $levels] } 3000, 60_000),
) {
    my ($name, $body) = @$case;
    is_error(send_to($body =~ /messages/ ? $chats : $completions, $body), 400, $name,
             type => 'invalid_request_error', code => 'invalid_json');
}

# What is valid, though odd.
for my $case (
    ['NUL escaped', '{"prompt":"a\u0000b","max_tokens":1,"stop":"\u0000"}', 200],
    ['a pair of surrogates', '{"prompt":"\ud83d\ude00","max_tokens":1}', 200],
    ['white space', " \t\r\n" x 1000 . "{$least{$completions}}" . "\n" x 1000, 200],
    ['an unknown field', "{$least{$completions},\"x\":" . '[' x 1000 . ']' x 1000 . '}', 200],
    ['many unknown fields', "{$least{$completions}," . join(',', map { "\"x$_\":$_" } 1 .. 20_000)
                            . '}', 200],
    ['the last of two keys', "{\"prompt\":5,$least{$completions}}", 200],
    ['the last of two keys, wrong', "{$least{$completions},\"prompt\":5}", 400, 'prompt'],
    ['one of 20,000 equal keys', '{' . '"prompt":5,' x 20_000 . "$least{$completions}}", 200],
    map({ ["arguments $_->[0] deep", "{$least{$chats},\"chat_template_kwargs\":{\"x\":"
           . '[' x ($_->[0] - 1) . ']' x ($_->[0] - 1) . '}}', $_->[1], 'chat_template_kwargs',
           $chats] } [64, 200], [65, 400], [1000, 400]),
    map({ ["$_->[0]: $_->[2]", '{"prompt":"a",' . "\"$_->[1]\":$_->[2]}", 400, $_->[1]] }
        ['too large', 'temperature', '1e400'], ['too small', 'top_k', '-1e400'],
        ['an integer', 'max_tokens', '1' . '0' x 30], ['nested', 'prompt', '[1' . '0' x 30 . ']']),
    ['a number of 60,000 digits', '{"prompt":"a","seed":' . '9' x 60_000 . '}', 400, 'seed'],
    ['a long name', "{$least{$completions},\"model\":\"" . 'x' x 50_000 . '"}', 400, 'model'],
    ['a long role', '{"messages":[{"role":"' . 'x' x 50_000 . '","content":"a"}]}', 400,
     'messages[0].role', $chats],
    ['9000 messages', '{"messages":[' . join(',', ('{"role":"user","content":"a"}') x 9000) . ']}',
     400, 'messages', $chats],
    ['100,000 stop ids', "{$least{$completions},\"stop_token_ids\":[" . join(',', 1 .. 100_000)
                         . ']}', 400, 'stop_token_ids'],
    ['a huge token', '{"prompt":[9223372036854775807]}', 400, 'prompt'],
    ['a negative token', '{"prompt":[-9223372036854775808]}', 400, 'prompt'],
    ['a huge bias', "{$least{$completions},\"logit_bias\":{\"99999999999999999999\":1}}", 400,
     'logit_bias'],
) {
    my ($name, $body, $status, $param, $uri) = @$case;
    my $answer = send_to($uri // $completions, $body);
    if ($status == 200) {
        is($answer->{status}, 200, $name) or diag($answer->{body});
    } else {
        is_error($answer, $status, $name, param => $param);
    }
}

# Around the size from which on bodies are parsed in a thread: the same answers.
my $plain = essence(send_to($completions, "{$least{$completions},\"temperature\":0}"));
for my $size (65_000, 65_535 .. 65_538, 131_072, 1_048_576) {
    my $body = "{$least{$completions},\"temperature\":0,\"x\":\"\"}";
    my $padding = 'x' x ($size - length $body);
    is(essence(send_to($completions, $body =~ s/""/"$padding"/r)), $plain, "a body of $size bytes");
    is_error(send_to($completions, '{"prompt":{},"x":"' . 'x' x ($size - 20) . '"}'), 400,
             "a wrong body of $size bytes", param => 'prompt');
    is_error(send_to($completions, '[' . ' ' x ($size - 1)), 400, "no body of $size bytes",
             code => 'invalid_json');
}

# Methods.
for my $uri ($completions, $chats) {
    for my $method (qw(GET PUT DELETE PATCH)) {
        my $answer = $client->request($method, $uri, $method eq 'GET' ? undef : '{"prompt":"a"}');
        is_error($answer, 405, "$method $uri");
        like($answer->{headers}{allow}, qr/\bPOST\b/, "$method $uri: Allow");
    }
    is($client->request('OPTIONS', $uri)->{status}, 204, "OPTIONS $uri");
    $client->{no_body} = 1;
    is($client->request('HEAD', $uri)->{status}, 405, "HEAD $uri");
    $client->{no_body} = 0;
}

# The content type is not what makes JSON.
for my $type ('', 'text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=',
              'application/json; charset=utf-16', 'x' x 3000, "\xff/\xff") {
    is(send_to($completions, "{$least{$completions}}", 'Content-Type' => $type)->{status}, 200,
       'content type ' . substr $type =~ s/[^ -~]/?/gr, 0, 40);
}

# Chunks of one byte; chunks that are none.
sub chunked {
    my ($body, $size) = @_;

    return join '', map({ sprintf "%x\r\n%s\r\n", length, $_ } unpack "(a$size)*", $body),
                    "0\r\n\r\n";
}

for my $size (1, 7, 4096) {
    is(send_to($completions, chunked("{$least{$completions},\"x\":\"" . 'x' x 300 . '"}', $size),
               'Transfer-Encoding' => 'chunked')->{status}, 200, "chunks of $size bytes");
    is_error(send_to($completions, chunked('{"prompt":' . ' ' x 300, $size),
                     'Transfer-Encoding' => 'chunked'), 400, "chunks of $size bytes, no JSON",
             code => 'invalid_json');
}
is(send_to($completions, chunked("{$least{$completions}}" . ' ' x 70_000, 4096),
           'Transfer-Encoding' => 'chunked')->{status}, 200, 'chunks of a body for a thread');
for my $chunks ("x\r\n", "-1\r\n", "fffffffffffffffff\r\n{}\r\n", "2\r\n{}}}\r\n0\r\n\r\n") {
    my $answer = post($server, $completions, $chunks,
                      headers => { 'Transfer-Encoding' => 'chunked' });
    like($answer->{status}, qr/^4/, 'bad chunks ' . $chunks =~ s/\s+/ /gr);
}

# Pipelined requests are answered in order, those at fault too.
my @pipeline = map { $_ % 3 ? "{\"prompt\":[5],\"max_tokens\":$_}" : '{"prompt":' } 1 .. 9;
$client->send_raw(join '', map { "POST $completions HTTP/1.1\r\nHost: a\r\nContent-Length: "
                                 . length($_) . "\r\n\r\n$_" } @pipeline);
for my $i (1 .. 9) {
    my $answer = $client->read_answer;
    if ($i % 3) {
        cmp_ok($answer->{json}{usage}{completion_tokens} // 99, '<=', $i, "pipelined request $i");
    } else {
        is_error($answer, 400, "pipelined request $i", code => 'invalid_json');
    }
}

# Expect: 100-continue.
my $body = "{$least{$completions}}";
my $patient = client($server);
$patient->send_request('POST', $completions, '', headers => {
    Expect => '100-continue', 'Content-Length' => length $body });
ok(wait_until(5, sub { $patient->fill; $patient->{buffer} =~ m{^HTTP/1.1 100 .*\r\n\r\n} }),
   '100 Continue');
$patient->send_raw($body);
is($patient->read_answer->{status}, 200, 'and the answer');
$patient->send_request('POST', $completions, '', headers => {
    Expect => '100-continue', 'Content-Length' => 100 << 20 });
$patient->fill;
like($patient->{buffer}, qr{^HTTP/1.1 413 }, 'no 100 Continue for too much');
$patient->close;

# 100 MB: refused by its length, by its chunks, and where it is allowed answered all the same.
is_error(post($server, $completions, '', headers => { 'Content-Length' => 100 << 20 }), 413,
         '100 MB announced', code => 'request_too_large');
my $flood = client($server);
$flood->send_request('POST', $completions, '', headers => { 'Transfer-Encoding' => 'chunked' });
my $megabyte = sprintf("%x\r\n", 1 << 20) . 'x' x (1 << 20) . "\r\n";
for (1 .. 100) {
    last if $flood->send_raw($megabyte) < length $megabyte;
}
is(eval { $flood->read_head->{status} } // 413, 413, '100 MB in chunks');
$flood->close;
for my $case (
    ['garbage', 'x' x (100 << 20), code => 'invalid_json'],
    ['white space', ' ' x (100 << 20), code => 'invalid_json'],
    ['a prompt', '{"prompt":"' . 'word ' x (20 << 20) . '"}', code => 'context_length_exceeded'],
) {
    my ($name, $large, %expected) = @$case;
    is_error(post($server, "/large$completions", $large, client => { timeout => 60 }), 400,
             "100 MB: $name", %expected);
}
is_error(post($server, "/large$completions", ' ' x (140 << 20), client => { timeout => 60 }), 413,
         'more than a frame holds', code => 'request_too_large');

# Slow bodies hold nothing but their connection.
my @slow = map { client($server) } 1 .. 20;
$_->send_request('POST', "/impatient$completions", '{',
                 headers => { 'Content-Length' => 100 }) for @slow;
is(send_to($completions, $body)->{status}, 200, 'slow bodies hold nobody up');
for my $loris (@slow) {
    my $status = eval { $loris->read_head->{status} } // 'closed';
    ok($status eq '408' || $status eq 'closed', 'a body that does not come');
    $loris->close;
}
my $drip = client($server);
$drip->send_request('POST', "/impatient$completions", '',
                    headers => { 'Content-Length' => length $body });
for my $byte (split //, $body) {
    $drip->send_raw($byte);
    sleep(0.005);
}
is($drip->read_answer->{status}, 200, 'a body byte by byte');
$drip->close;

# Clients that leave within their body, or while it is parsed.
for my $sent (0, 1, 70_000, 900_000, 1_000_000) {
    my $gone = client($server);
    $gone->send_request('POST', $completions, '[' x $sent,
                        headers => { 'Content-Length' => 1_000_000 });
    $sent % 2 ? $gone->abort : $gone->close;
}

is(send_to($completions, $body)->{status}, 200, 'the first connection still works');
ok(idle($server), 'the engine is idle');
is_deeply([$server->worker_pids], \@workers, 'the same workers');
is($server->engine_pid, $engine, 'the same engine');

finish();
