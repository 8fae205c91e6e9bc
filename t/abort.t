# A client that goes away is noticed at once, wherever its request is: mid-stream, waiting, before
# the first token, without streaming, over TLS.

use lib 't/lib';
use Moe::Test;

my $server = server(model_block => 'batch_sequences 2;');

# Mid-stream.
for my $how (qw(close abort)) {
    my $client = hold($server);
    is(running($server), 1, "$how: one request runs");
    $client->$how;
    ok(idle($server), "$how: and is cancelled");
}

# The engine does not generate on: the counter stands still.
my $tokens = metric($server, 'moe_generation_tokens_total');
sleep(0.3);
is(metric($server, 'moe_generation_tokens_total'), $tokens, 'no tokens for nobody');

# While waiting.
my @held = map { hold($server) } 1 .. 2;
for my $body (long_body(5), long_body(5, stream => \1)) {
    my $waiter = client($server);
    $waiter->send_request('POST', '/v1/completions', { model => 'demo', %$body });
    ok(wait_until(2, sub { waiting($server) == 1 }), 'a third request waits');
    $waiter->close;
    ok(wait_until(2, sub { waiting($server) == 0 }), 'and leaves the queue');
    is(running($server), 2, 'the others run on');
}
$_->close for @held;
ok(idle($server), 'all are gone');

# Not streaming.
my $client = client($server);
$client->send_request('POST', '/v1/completions', { model => 'demo', %{long_body(2000)} });
ok(wait_until(2, sub { running($server) == 1 }), 'a request without a stream runs');
$client->close;
ok(idle($server), 'and is cancelled');

# At any moment, often: no slot stays taken.
for my $i (1 .. 60) {
    my $client = client($server);
    $client->send_request('POST', '/v1/completions',
        { model => 'demo', stream => $i % 2 ? \1 : \0, prompt => 'Syntax: gzip ' x ($i * 3),
          max_tokens => 500, ignore_eos => \1 });
    sleep(0.0005 * ($i % 8));
    $i % 3 ? $client->close : $client->abort;
}
ok(idle($server, 5), 'after sixty aborted requests');
my $samples = metrics($server);
my ($usage) = grep { /^moe_kv_cache_usage_perc/ } keys %$samples;
is($samples->{$usage} + 0, 0, 'no cache is in use');
my @answers = parallel($server, map { ['/v1/completions', long_body(20)] } 1 .. 4);
is_deeply([map { $_->{status} } @answers], [(200) x 4], 'both slots work');

# Half a request, a body that never comes.
$client = client($server);
$client->send_raw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"pro");
$client->close;
ok(idle($server), 'half a body');

finish();
