# A client that goes away is noticed at once, wherever its request is: mid-stream, waiting, before
# the first token, without streaming, over TLS.

use lib 't/lib';
use Moe::Test;

my $server = server();

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

# While waiting, and while running without a stream.
my $slow = server(slow => 1, model_block => 'batch_sequences 1;');
my $runner = send_body($slow, long_body(2000));
ok(wait_until(5, sub { running($slow) == 1 }), 'one runs');
for my $stream (\0, \1) {
    my $waiter = send_body($slow, long_body(5, stream => $stream));
    ok(wait_until(2, sub { waiting($slow) == 1 }), "stream $$stream: another waits");
    $waiter->close;
    ok(wait_until(2, sub { waiting($slow) == 0 }), "stream $$stream: and leaves the queue");
    is(running($slow), 1, "stream $$stream: the first runs on");
}
$runner->close;
ok(idle($slow), 'it is cancelled, too');

# In the middle of a prompt's prefill.  The engine has to know how long a row takes: a first prompt.
completion($slow, { prompt => [(7) x 20], max_tokens => 1 });
$runner = send_body($slow, { prompt => [(7) x 2000], max_tokens => 1 });
ok(wait_until(5, sub { running($slow) == 1 }), 'a long prompt');
$runner->close;
ok(idle($slow), 'is cancelled between two chunks');
$slow->stop;

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
is_deeply([map { $_->{status} } @answers], [(200) x 4], 'all are served');

# Half a request, a body that never comes.
my $client = client($server);
$client->send_raw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"pro");
$client->close;
ok(idle($server), 'half a body');

finish();
