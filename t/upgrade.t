# USR2, an upgrade of the executable: a new master with an engine of its own, which starts when the
# old one is gone; streams of the old one end normally, requests meanwhile wait.  And the way back.

use lib 't/lib';
use Moe::Test;

my $server = server(daemon => 'on');
my $body = long_body(900);
my $expected = completion($server, $body)->{json}{choices}[0]{text};
my $short = essence(completion($server, long_body(10)));
my $old = $server->{master};

# Starts a second master; its pid.
sub upgrade {
    $server->signal('USR2', $old);
    return wait_until(10, sub {
        my $pid = $server->pid_file;
        return $pid && $pid != $old && -e "$server->{prefix}/nginx.pid.oldbin" && $pid;
    }) || die "there is no second master\n";
}

sub quits {
    my ($master) = @_;

    $server->signal('QUIT', $master);
    return wait_until(10, sub { !grep { $_->{pid} == $master } $server->processes });
}

sub engines {
    return map { $_->{pid} } grep { $_->{title} =~ m{^\S*moe-engine serve} } $server->processes;
}

# The way back, before the old master was told anything: its engine and streams stay.
my @engines = engines();
my $held = hold($server, $body);
my $new = upgrade();
ok(quits($new), 'back: the new master quits');
my $result = collect($held);
is($result->{text}, $expected, 'back: a stream of the old one is whole');
ok($result->{done} && $result->{complete}, 'back: and ends properly');
$held->close;
is_deeply([engines()], \@engines, 'back: with the same engine');
is(essence(completion($server, long_body(10))), $short, 'back: which serves');

# After WINCH the old workers and their engine are gone.  The workers that follow when the new
# master quits have none: a reload starts it.
$new = upgrade();
$server->signal('WINCH', $old);
ok(wait_until(10, sub { my ($pid) = engines(); $pid && $pid != $engines[0] && $server->health == 200 }),
   'WINCH: the new engine serves');
ok(quits($new), 'WINCH and back: the new master quits');
my $health;
ok(wait_until(10, sub { $health = eval { get($server, '/health') } }),
   'WINCH and back: the old one has workers');
is($health->{json}{status}, 'stopped', 'WINCH and back: /health says that there is no engine');
$server->signal('HUP', $old);
ok($server->wait_ready, 'WINCH and back: after a reload there is one');
is(essence(completion($server, long_body(10))), $short, 'WINCH and back: which serves');

# All the way: requests that come before the new engine is there wait for it.
@engines = engines();
$held = hold($server, $body);
$new = upgrade();
my @waiting = map { send_body($server, long_body(10)) } 1 .. 8;
$server->signal('QUIT', $old);
$result = collect($held);
is($result->{text}, $expected, 'a stream of the old one is whole');
ok($result->{done} && $result->{complete}, 'and ends properly');
$held->close;
is_deeply([grep { $_ ne $short } map { essence($_->read_answer) } @waiting], [],
          'requests at that time are answered');
$_->close for @waiting;
ok(wait_until(10, sub { !grep { $_->{pid} == $old } $server->processes }), 'the old one is gone');
$server->wait_ready;
is(scalar engines(), 1, 'there is one engine');
isnt((engines())[0], $engines[0], 'another one');
is(essence(completion($server, long_body(10))), $short, 'which serves the same');

$server->signal('QUIT', $new);
ok($server->gone(10), 'the new one quits');

finish();
