# Over TLS: answers, streams, large bodies, aborts.

use lib 't/lib';
use Moe::Test;

my $server = server(start => 0, tls_port => Moe::Server::free_port(), server => <<'END');
listen 127.0.0.1:%TLS_PORT% ssl sndbuf=4k;
ssl_certificate %PREFIX%/cert.pem;
ssl_certificate_key %PREFIX%/key.pem;
END
$server->make_certificate;
$server->start;

my @tls = (client => { tls => 1, port => $server->{tls_port} });
my $body = long_body(500);
my $expected = completion($server, $body);

is(essence(completion($server, $body, @tls)), essence($expected), 'the same answer');
my $result = collect_all($server, '/v1/completions', $body, @tls);
is($result->{text}, $expected->{json}{choices}[0]{text}, 'the same stream');
ok($result->{done} && $result->{complete}, 'with a proper end');
my $large = completion($server, { prompt => 'a', max_tokens => 1, user => 'x' x 900_000 }, @tls);
is($large->{status}, 200, 'a large body');
my $echo = completion($server, { prompt => 'gzip ' x 400, max_tokens => 0, echo => \1 }, @tls);
is($echo->{json}{choices}[0]{text}, 'gzip ' x 400, 'a large answer');

# Back-pressure and aborts.
for my $how (qw(close abort)) {
    my $client = hold($server, $body,
                      client => { tls => 1, port => $server->{tls_port} });
    is(running($server), 1, "$how: held");
    is(completion($server, long_body(20), @tls)->{status}, 200, "$how: others are served");
    $client->$how;
    ok(idle($server), "$how: cancelled");
}
my $client = hold($server, $body, client => { tls => 1, port => $server->{tls_port} });
is(collect($client)->{text}, $expected->{json}{choices}[0]{text}, 'whole after a pause');
$client->close;

# Keep-alive.
$client = client($server, tls => 1, port => $server->{tls_port});
is(essence($client->request('POST', '/v1/completions', { model => 'demo', %$body })),
   essence($expected), "keep-alive $_") for 1 .. 2;
$client->close;

finish();
