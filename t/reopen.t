# USR1: workers and the engine go on in a new log.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $engine = $server->engine_pid;

rename "$server->{prefix}/error.log", "$server->{prefix}/old.log" or die "rename: $!";
$server->signal('USR1');
ok(wait_until(3, sub { -e "$server->{prefix}/error.log" }), 'there is a new log');
ok(wait_until(3, sub {
    my ($log) = grep { m{/error\.log$} } map { readlink // '' } glob "/proc/$engine/fd/*";
    return $log;
}), 'the engine has opened it');
is($server->engine_pid, $engine, 'the engine is the same');
is(completion($server, long_body(3))->{status}, 200, 'and serves');
is_deeply([$server->stop], [], 'it quits');
like($server->log_text('error.log'), qr/moe-engine: drain/, 'its words are in the new log');
unlike($server->log_text('old.log'), qr/moe-engine: drain/, 'not in the old one');

finish();
