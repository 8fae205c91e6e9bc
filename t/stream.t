# Server-sent events: their form for both routes, HTTP/1.0 and 1.1, and that a stream says what the
# answer in one piece says.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $vocabulary = json_decode(file_content("$Moe::Server::MODEL/tokenizer.json"))->{model}{vocab};

# Form of a completion's stream.
my $client = stream($server, '/v1/completions', long_body(20));
my $result = collect($client);
my @events = @{$result->{events}};

is($client->{head}{status}, 200, 'status');
like($client->{head}{headers}{'content-type'}, qr{^text/event-stream\b}, 'content type');
is($client->{head}{headers}{'transfer-encoding'}, 'chunked', 'chunked');
is($client->{head}{headers}{'content-length'}, undef, 'no length');
ok($result->{done} && $result->{complete}, 'ends with [DONE] and a whole body');
is_deeply([grep { $_ ne 'text_completion' } map { $_->{object} } @events], [], 'object');
is(scalar keys %{{ map { $_->{id} => 1 } @events }}, 1, 'one id');
is_deeply($result->{finishes}, { 0 => ['length'] }, 'one finish reason');
is($events[-1]{choices}[0]{finish_reason}, 'length', 'in the last event');
is($events[-1]{choices}[0]{text}, '', 'which has no text');
is($result->{usage}, undef, 'no usage unless asked for');

# Keep-alive goes on after a stream.
is($client->request('GET', '/health')->{status}, 200, 'the connection serves another request');
$client->close;

# Form of a chat's stream.
$result = collect_all($server, '/v1/chat/completions',
    { messages => [{ role => 'user', content => 'What is the default of keepalive_timeout?' }],
      temperature => 0, stream_options => { include_usage => \1 } });
@events = @{$result->{events}};
is_deeply($events[0]{choices}[0]{delta}, { role => 'assistant', content => '' }, 'first delta');
is_deeply($events[-2]{choices}[0]{delta}, {}, 'last delta is empty');
is_deeply($result->{finishes}, { 0 => ['stop'] }, 'one finish reason');
is_deeply([grep { $_ ne 'chat.completion.chunk' } map { $_->{object} } @events], [], 'object');
is_deeply($events[-1]{choices}, [], 'usage has an event of its own');
is(scalar(grep { exists $_->{usage} && !defined $_->{usage} } @events), @events - 1,
   'the others have usage null');
my $whole = chat($server, 'What is the default of keepalive_timeout?')->{json};
is($result->{text}, $whole->{choices}[0]{message}{content}, 'text as in one piece');
is_deeply(counts($result->{usage}), counts($whole->{usage}), 'usage as in one piece');

# Streamed equals not streamed, for many kinds of request.
my @halves = ($vocabulary->{"\xC3"}, $vocabulary->{"\xA9"}, $vocabulary->{a});
for my $case (
    ['greedy', long_body(60)],
    ['seeded', long_body(60, temperature => 1, seed => 7)],
    ['broken characters',
     long_body(40, temperature => 2, seed => 3, allowed_token_ids => \@halves)],
    ['echo', long_body(5, echo => \1, prompt => "Größe 日本 🙂\n")],
    ['one token', long_body(1)],
    ['end token first', { prompt => 'a', temperature => 0, logit_bias => { 1 => 100 } }],
    ['several prompts', long_body(12, prompt => ['Syntax: gzip', 'Directive: proxy_pass', 'a'])],
) {
    my ($name, $body) = @$case;
    my $streamed = collect_all($server, '/v1/completions',
        { %$body, stream_options => { include_usage => \1 } });
    my $answer = completion($server, $body)->{json};

    for my $choice (@{$answer->{choices}}) {
        my $index = $choice->{index};
        is($streamed->{texts}{$index}, $choice->{text}, "$name: text of choice $index");
        is_deeply($streamed->{finishes}{$index}, [$choice->{finish_reason}],
                  "$name: finish reason of choice $index");
    }
    is_deeply(counts($streamed->{usage}), counts($answer->{usage}), "$name: usage");
}

# A character of several tokens comes in one piece.
$result = collect_all($server, '/v1/completions',
    long_body(200, temperature => 2, seed => 5, allowed_token_ids => [@halves[0, 1]]));
my @texts = map { $_->{choices}[0]{text} } @{$result->{events}};
like(join('', @texts), qr/\x{E9}/, 'two tokens made a character');
is(scalar(grep { !/^[\x{E9}\x{FFFD}]*$/ } @texts), 0, 'every event is valid UTF-8');

# Nothing is sent while a prompt may still be refused: the second one takes a while to count.
$client = stream($server, '/v1/completions', long_body(50, prompt => ['a', 'a b ' x 200_000]));
is($client->{head}{status}, 400, 'one of several prompts is too long: no stream');
$client->close;

# HTTP/1.0: no chunks; the end of the connection is the end of the stream.
$client = client($server);
$client->send_request('POST', '/v1/completions',
    { model => 'demo', stream => \1, %{long_body(20)} }, version => '1.0');
my $head = $client->read_head;
is($head->{headers}{'transfer-encoding'}, undef, 'HTTP/1.0: not chunked');
is($head->{headers}{connection}, 'close', 'HTTP/1.0: closes');
$result = collect($client);
ok($result->{done} && $result->{complete}, 'HTTP/1.0: whole stream');
is($client->request('GET', '/health', undef, version => '1.0')->{status}, 200, 'HTTP/1.0')
    if $client = client($server);

# Requests: chunked body, body in a file, several on one connection, pipelined.
my $body = json_encode({ model => 'demo', %{long_body(5)} });
my $expected = essence(completion($server, long_body(5)));
$client = client($server);
for (1 .. 3) {
    is(essence($client->request('POST', '/v1/completions', $body)), $expected, "keep-alive $_");
}
$client->send_request('POST', '/v1/completions',
    join('', map { sprintf "%x\r\n%s\r\n", length, $_ } unpack('(a7)*', $body)) . "0\r\n\r\n",
    headers => { 'Transfer-Encoding' => 'chunked' });
is(essence($client->read_answer), $expected, 'chunked request');
is(essence($client->request('POST', '/v1/completions', $body . ' ' x 200_000)), $expected,
   'body in a file');
$client->send_request('POST', '/v1/completions', $body) for 1 .. 2;
is(essence($client->read_answer), $expected, "pipelined $_") for 1 .. 2;

finish();
