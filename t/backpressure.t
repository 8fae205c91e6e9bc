# A client that does not read pauses its own sequence only, and costs bounded memory.

use lib 't/lib';
use Moe::Test;

my $server = server(server => 'send_timeout 60s;');
my $body = long_body(1000);
my $expected = completion($server, $body)->{json}{choices}[0]{text};

sub resident_pages {
    my ($pid) = @_;

    return (split ' ', file_content("/proc/$pid/statm"))[1];
}

my $before = metric($server, 'moe_generation_tokens_total');
my @stalled = map { hold($server, $body) } 1 .. 3;

# The three stand still, long before their end.
my $last = -1;
ok(wait_until(10, sub {
    my $now = metric($server, 'moe_generation_tokens_total');
    sleep(0.3);
    my $still = $now == $last;
    $last = $now;
    return $still;
}), 'stalled streams generate nothing more');
cmp_ok($last - $before, '<', 3 * 700, 'they have stopped far from their end');
is(running($server), 3, 'all three are still there');

# Others are served meanwhile, and get what they get otherwise.
my @others = parallel($server, map { ['/v1/completions', long_body(200)] } 1 .. 8);
is_deeply([map { $_->{status} } @others], [(200) x 8], 'others are served');
is(scalar keys %{{ map { essence($_) => 1 } @others }}, 1, 'all alike');
is(collect_all($server, '/v1/completions', long_body(300))->{finish}, 'length', 'streams too');
is(running($server), 3, 'the stalled ones have waited');

# Who reads again gets everything.
for my $client (@stalled[0, 1]) {
    my $result = collect($client);
    is($result->{text}, $expected, 'the whole text after a pause');
    ok($result->{done} && $result->{complete}, 'and a proper end');
    $client->close;
}
$stalled[2]->close;
ok(idle($server), 'idle');

# Many stalled streams do not make the processes grow: what a client has not taken waits in full
# buffers, not in one for each token.
ok(wait_until(10, sub { $server->worker_pids == 2 }), 'two workers');
my @pids = ($server->worker_pids, $server->engine_pid);
my @pages = map { resident_pages($_) } @pids;
my @crowd = map { hold($server, $body) } 1 .. 16;
sleep(1);
for my $i (0 .. $#pids) {
    cmp_ok((resident_pages($pids[$i]) - $pages[$i]) * 4 / 1024, '<',
           $i < $#pids ? 3 : 48, "process $i: megabytes more");
}
$_->close for @crowd;
ok(idle($server), 'idle again');
$server->stop;

# send_timeout ends a stream that nobody reads.
my $impatient = server(server => 'send_timeout 1s;');
my $client = hold($impatient, $body);
is(running($impatient), 1, 'stalled');
ok(idle($impatient, 6), 'send_timeout cancels it');
$client->close;

finish();
