# A worker killed while it streams: its sequences leave the batch, another worker's stream and the
# engine do not notice.

use lib 't/lib';
use Moe::Test;

my $server = server(server => 'listen 127.0.0.1:%REUSE_PORT% sndbuf=4k reuseport;',
                    reuse_port => Moe::Server::free_port());
my $engine = $server->engine_pid;
my $body = long_body(1500);
my $expected = completion($server, $body)->{json}{choices}[0]{text};

# One held stream on each of the two workers.
my %by_worker;
for (1 .. 40) {
    last if keys %by_worker == 2;
    my $client = hold($server, $body, client => { port => $server->{reuse_port} });
    my $worker = $client->{head}{headers}{'x-worker'};
    $by_worker{$worker} ? $client->close : ($by_worker{$worker} = $client);
}
my ($victim, $survivor) = sort keys %by_worker;
is(scalar keys %by_worker, 2, 'a stream on each worker');
ok(wait_until(2, sub { running($server) == 2 }), 'both run');

$server->signal('KILL', $victim);
ok(wait_until(2, sub { running($server) == 1 }), "the killed worker's sequence is gone");
ok($by_worker{$victim}->closed(2), 'its client sees the end');
my $result = collect($by_worker{$survivor});
is($result->{text}, $expected, "the other worker's stream is whole");
ok($result->{done} && $result->{complete}, 'and ends properly');
$by_worker{$survivor}->close;
ok(idle($server), 'idle');
is($server->engine_pid, $engine, 'the engine is the same');
ok(wait_until(5, sub { $server->worker_pids == 2 }), 'there is a new worker');
my @answers = parallel($server, map { ['/v1/completions', long_body(10)] } 1 .. 12);
is_deeply([map { $_->{status} } @answers], [(200) x 12], 'both workers serve');

$server->expect(qr/worker process \d+ exited on signal 9/);
finish();
