# USR2, an upgrade of the executable: a new master with an engine of its own, which starts when the
# old one is gone; streams of the old one end normally.

use lib 't/lib';
use Moe::Test;

my $server = server(daemon => 'on');
my $body = long_body(900);
my $expected = completion($server, $body)->{json}{choices}[0]{text};
my $engine = $server->engine_pid;
my $old = $server->{master};
my $held = hold($server, $body);

$server->signal('USR2');
my $new = wait_until(10, sub {
    my $pid = $server->pid_file;
    return $pid && $pid != $old && -e "$server->{prefix}/nginx.pid.oldbin" && $pid;
});
ok($new, 'there is a second master');
$server->signal('QUIT', $old);
my $result = collect($held);
is($result->{text}, $expected, 'a stream of the old one is whole');
ok($result->{done} && $result->{complete}, 'and ends properly');
$held->close;
ok(wait_until(10, sub { !grep { $_->{pid} == $old } $server->processes }), 'the old one is gone');
$server->wait_ready;
my @engines = grep { $_->{title} =~ m{^\S*moe-engine serve} } $server->processes;
is(scalar @engines, 1, 'there is one engine');
isnt($engines[0]{pid}, $engine, 'another one');
is(completion($server, $body)->{json}{choices}[0]{text}, $expected, 'which serves the same');

$server->signal('QUIT', $new);
ok($server->gone(10), 'the new one quits');

finish();
