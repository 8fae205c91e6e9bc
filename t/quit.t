# Shutting down: QUIT lets streams end, TERM does not wait; nothing is left; also as a daemon.

use lib 't/lib';
use Moe::Test;

my $body = long_body(1500);

# QUIT with an open stream and a waiting request.
my $server = server(slow => 1, model_block => 'batch_sequences 1;');
my $running = stream($server, '/v1/completions', long_body(60));
my $waiter = send_body($server, long_body(5));
ok(wait_until(2, sub { waiting($server) == 1 }), 'a request waits');
my $engine = $server->engine_pid;
$server->signal('QUIT');
sleep(0.5);
ok($server->alive, 'nginx waits for the stream');
is($server->engine_pid, $engine, 'so does the engine');
my $result = collect($running);
is($result->{finish}, 'length', 'the stream has its finish reason');
ok($result->{done} && $result->{complete}, 'and ends properly');
is($waiter->read_answer->{status}, 200, 'the waiting request is served');
$_->close for $running, $waiter;
ok($server->gone(5), 'then everything is gone');

# QUIT with a stream whose client is slow.
$server = server();
my $expected = completion($server, $body)->{json}{choices}[0]{text};
my $held = hold($server, $body);
$server->signal('QUIT');
sleep(0.5);
ok($server->alive, 'nginx waits for a slow client');
$result = collect($held);
is($result->{text}, $expected, 'who gets everything');
ok($result->{done} && $result->{complete}, 'and a proper end');
$held->close;
ok($server->gone(5), 'then everything is gone');

# TERM with an open stream.
$server = server();
$held = hold($server, $body);
$server->signal('TERM');
ok($server->gone(5), 'TERM does not wait');
ok($held->closed(5), 'the client sees the end');

# QUIT and TERM while the engine loads.
for my $signal (qw(QUIT TERM)) {
    $server = server(ready => 0);
    $server->signal($signal);
    ok($server->gone(5), "$signal while loading");
}

# As a daemon.
$server = server(daemon => 'on');
is(completion($server, long_body(3))->{status}, 200, 'a daemon serves');
my ($master) = grep { $_->{title} =~ /^nginx: master/ } $server->processes;
isnt($master->{pid}, undef, 'its master is there');
is(kill(0, $server->{child}), 0, 'what started it is gone');
$server->reload;
is(completion($server, long_body(3))->{status}, 200, 'a reloaded daemon serves');
$held = hold($server, $body);
$server->signal('QUIT');
$result = collect($held);
ok($result->{done} && $result->{complete}, 'its stream ends properly');
$held->close;
ok($server->gone(5), 'a daemon quits');

finish();
