# The master killed with SIGKILL: the engine goes at once, the orphaned workers answer 503.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $held = hold($server, long_body(1500));
ok($server->engine_pid, 'the engine is there');

$server->signal('KILL');
ok(wait_until(1, sub { !$server->engine_pid }), 'the engine is gone within a second');
is(scalar(grep { $_->{title} !~ /^nginx: worker process/ } $server->processes), 0,
   'only workers are left');
my $began = time();
my $result = collect($held);
ok($result->{error} && $result->{done}, 'the open stream ends with an error event');
cmp_ok(time() - $began, '<', 5, 'and does not wait for another engine');
$held->close;
is(completion($server, long_body(3))->{status}, 503, 'requests get 503');
is($server->health, 503, '/health is 503');
$server->signal('QUIT', $_) for $server->worker_pids;
ok($server->gone(5), 'the workers quit');

# nginx's own words about the master's end of a worker's channel.
$server->expect(qr/recvmsg\(\) failed \(104/);
finish();
