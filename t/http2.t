# HTTP/2: answers and streams, one connection with many; a reset or stalled stream leaves the others
# alone.

use lib 't/lib';
use Moe::Test;
use Moe::HTTP2;

# "http2 on" has taken the place of listen's parameter.
my ($major, $minor, $patch) = `$Moe::Server::NGINX -v 2>&1` =~ m{nginx/(\d+)\.(\d+)\.(\d+)};
my $own_directive = $major * 1e6 + $minor * 1e3 + $patch >= 1_025_001;
my $listen = $own_directive ? '' : 'http2';
my $on = $own_directive ? 'http2 on;' : '';
my $server = server(start => 0, h2_port => Moe::Server::free_port(),
    tls_port => Moe::Server::free_port(), server => <<"END");
listen 127.0.0.1:%H2_PORT% $listen;
listen 127.0.0.1:%TLS_PORT% ssl $listen;
$on
ssl_certificate %PREFIX%/cert.pem;
ssl_certificate_key %PREFIX%/key.pem;
END
$server->make_certificate;
$server->start;

my $body = { model => 'demo', %{long_body(500)} };
my $expected = completion($server, $body);
my $text = $expected->{json}{choices}[0]{text};

sub events_text {
    my ($h2, $id) = @_;
    my ($whole, $last) = ('', '');

    while (defined(my $data = $h2->event($id))) {
        $last = $data;
        $whole .= json_decode($data)->{choices}[0]{text} // '' if $data ne '[DONE]';
    }
    is($last, '[DONE]', "stream $id ends with [DONE]");
    return $whole;
}

for my $tls (0, 1) {
    my $name = $tls ? 'h2' : 'h2c';
    my $h2 = Moe::HTTP2->new(port => $server->{$tls ? 'tls_port' : 'h2_port'}, tls => $tls);
    my @ids = map { $h2->send_request('POST', '/v1/completions', $body) } 1 .. 4;
    is(essence($h2->answer($_)), essence($expected), "$name: answer on stream $_") for @ids;
    my $id = $h2->send_request('POST', '/v1/completions', { %$body, stream => \1 });
    is(events_text($h2, $id), $text, "$name: streamed");
    is($h2->{streams}{$id}{headers}{':status'}, 200, "$name: status");
    like($h2->{streams}{$id}{headers}{'content-type'}, qr{^text/event-stream}, "$name: type");
    $id = $h2->send_request('POST', '/v1/completions', { %$body, max_tokens => -1 });
    is($h2->answer($id)->{status}, 400, "$name: an error");
    is($h2->answer($h2->send_request('GET', '/health'))->{status}, 200, "$name: GET");
    $h2->close;
}

# Two streams; one is reset in the middle.
my $h2 = Moe::HTTP2->new(port => $server->{h2_port}, window => 4096);
my ($one, $two) = map {
    $h2->send_request('POST', '/v1/completions', { %$body, stream => \1 }, auto => 0)
} 1, 2;
$h2->event($_) for $one, $two;
is(running($server), 2, 'two streams run');
$h2->reset_stream($one);
ok(wait_until(2, sub { running($server) == 1 }), 'RST_STREAM cancels one');
$h2->{streams}{$two}{auto} = 1;
$h2->grant($two, 1 << 20);
like(events_text($h2, $two), qr/\Q${\ substr $text, -200}\E$/, 'the other is untouched');
is(essence($h2->answer($h2->send_request('POST', '/v1/completions', $body))), essence($expected),
   'the connection serves on');
ok(idle($server), 'idle');

# A stream without window stalls alone.
my $stalled = $h2->send_request('POST', '/v1/completions', { %$body, stream => \1 }, auto => 0);
$h2->event($stalled);
is(events_text($h2, $h2->send_request('POST', '/v1/completions', { %$body, stream => \1 })), $text,
   'a stalled stream does not hold its neighbour');
is(running($server), 1, 'the stalled one has waited');
$h2->{streams}{$stalled}{auto} = 1;
$h2->grant($stalled, 1 << 20);
like(events_text($h2, $stalled), qr/\Q${\ substr $text, -200}\E$/, 'and goes on');

# Reset while waiting for the first token, and the whole connection closed.
for (1 .. 10) {
    my @ids = map { $h2->send_request('POST', '/v1/completions', { %$body, stream => \1 }) } 1 .. 5;
    $h2->reset_stream($_) for @ids;
}
ok(idle($server), 'fifty resets at once');
my $last = $h2->send_request('POST', '/v1/completions', { %$body, stream => \1 }, auto => 0);
$h2->event($last);
is(running($server), 1, 'one runs');
$h2->close;
ok(idle($server), 'a closed connection cancels it');

finish();
