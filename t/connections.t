# How answers travel: keep-alive and its ends, HTTP/1.0, HEAD, limit_rate.

use lib 't/lib';
use Moe::Test;

my $server = server(server => <<'END');
location /few/ {
    keepalive_requests 2;
    moe_pass demo;
}

location /slow/ {
    limit_rate 8k;
    moe_pass demo;
}
END
my $body = { model => 'demo', %{long_body(20)} };
my $completions = '/v1/completions';
my $expected = essence(completion($server, $body));

# One connection: answers, streams, errors and GETs in turn.
my $client = client($server);
for my $round (1 .. 3) {
    is(essence($client->request('POST', $completions, $body)), $expected, "round $round: answer");
    $client->send_request('POST', $completions, { %$body, stream => \1 });
    $client->read_head;
    my $result = collect($client);
    ok($result->{done} && $result->{complete}, "round $round: stream");
    is($client->request('POST', $completions, { %$body, n => 0 })->{status}, 400,
       "round $round: error");
    is($client->get('/v1/models')->{status}, 200, "round $round: models");
}

# HEAD is GET without the body.
for my $uri ('/v1/models', '/v1/models/demo', '/v1/models/none', '/health', '/v1/nothing',
             $completions) {
    my $get = $client->get($uri);
    $client->{no_body} = 1;
    my $head = $client->request('HEAD', $uri);
    $client->{no_body} = 0;
    is($head->{status}, $get->{status}, "HEAD $uri: status");
    is($head->{headers}{$_}, $get->{headers}{$_}, "HEAD $uri: $_")
        for qw(content-type content-length);
}
is(essence($client->request('POST', $completions, $body)), $expected, 'and goes on');
$client->close;

# Who ends the connection, and when.
for my $case (
    # request's version, headers, whether the connection ends
    ['1.1', {}, 0], ['1.1', { Connection => 'close' }, 1],
    ['1.0', {}, 1], ['1.0', { Connection => 'keep-alive' }, 0],
) {
    my ($version, $headers, $ends) = @$case;
    for my $stream (\0, \1) {
        my $client = client($server);
        my $name = "HTTP/$version " . join(' ', %$headers) . ", stream $$stream";
        my $answer = $client->request('POST', $completions, { %$body, stream => $stream },
                                      version => $version, headers => $headers);
        is($answer->{status}, 200, $name);
        # without chunks only the end of the connection tells the end of a stream
        my $closes = $ends || ($$stream && $version eq '1.0');
        is($answer->{headers}{connection}, $closes ? 'close' : 'keep-alive', "$name: Connection");
        ok($answer->{complete}, "$name: whole");
        is(eval { $client->get('/health')->{status} } // 'closed', $closes ? 'closed' : 200,
           "$name: afterwards");
        $client->close;
    }
}
$client = client($server);
is($client->request('POST', "/few$completions", $body)->{headers}{connection}, $_,
   "keepalive_requests: $_") for 'keep-alive', 'close';
$client->close;

# limit_rate: a stream takes the time of its size, and is the same.
my $long = { model => 'demo', %{long_body(150)}, stream => \1 };
my $plain = collect_all($server, $completions, $long);
my $began = time();
my $slow = post($server, "/slow$completions", $long);
my $elapsed = time() - $began;
my $size = length $slow->{body};
cmp_ok($size, '>', 24_000, "limit_rate: a stream of $size bytes");
cmp_ok($elapsed, '>', $size / 8192 - 1.5, 'limit_rate: takes its time');
my @data = $slow->{body} =~ /^data: (\{.*)$/mg;
is(join('', map { json_decode($_)->{choices}[0]{text} } @data), $plain->{text},
   'limit_rate: the same text');
ok($slow->{complete}, 'limit_rate: whole');
ok(idle($server), 'idle');

finish();
