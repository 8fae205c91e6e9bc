# nginx -s reload: the engine stays, no stream is cut, no request fails; a changed model restarts
# its engine.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $engine = $server->engine_pid;
my $body = long_body(900);
my $expected = completion($server, $body)->{json}{choices}[0]{text};
my $short = essence(completion($server, long_body(10)));

# Streams that are open during five reloads, and requests all the while.
my @held = map { hold($server, $body) } 1 .. 4;
my @failed;
for my $round (1 .. 5) {
    my %before = map { $_ => 1 } $server->worker_pids;
    my $served = 0;

    $server->signal('HUP');
    ok(wait_until(10, sub {
        push @failed, $_ for grep { essence($_) ne $short } completion($server, long_body(10));
        $served++;
        my @workers = $server->worker_pids;
        return @workers == 2 && !grep { $before{$_} } @workers;
    }), "reload $round: new workers after $served requests");
    push @held, hold($server, $body) if $round < 4;
}
is_deeply(\@failed, [], 'no request failed');
is($server->engine_pid, $engine, 'the engine is the same');
is(running($server), 7, 'all streams are open');
for my $i (0 .. $#held) {
    my $result = collect($held[$i]);
    is($result->{text}, $expected, "stream $i: the whole text");
    ok($result->{done} && $result->{complete}, "stream $i: a proper end");
    $held[$i]->close;
}
ok(idle($server), 'idle');
ok(wait_until(5, sub { !grep { $_->{title} =~ /shutting down/ } $server->processes }),
   'the former workers are gone');

# Reloads without a pause between them.
for (1 .. 5) {
    $server->signal('HUP');
    sleep(0.03);
}
ok(wait_until(10, sub { $server->worker_pids == 2
    && !grep { $_->{title} =~ /shutting down/ } $server->processes }), 'after a burst of reloads');
is($server->engine_pid, $engine, 'the engine is the same');
is(essence(completion($server, long_body(10))), $short, 'and serves');

# Directives outside the engine take effect without touching it.
$server->write_config(location => 'moe_max_tokens 3;');
$server->reload;
is(completion($server, long_body(10))->{json}{usage}{completion_tokens}, 3, 'moe_max_tokens');
is($server->engine_pid, $engine, 'the engine is the same');

# A configuration with a fault is not taken.
my $refusal = qr/\[emerg\].*"moe_pass" directive is duplicate/;
$server->expect($refusal);
$server->write_config(location => 'moe_pass demo;');
$server->signal('HUP');
ok(wait_until(5, sub { $server->log_text =~ $refusal }),
   'a broken configuration is refused');
is(essence(completion($server, long_body(3))), essence(completion($server, long_body(3))),
   'the old one serves on');

# A changed model: the engine is another one, requests of both times are answered.
my $old = hold($server, $body);
$server->write_config(location => '', context => 1024);
$server->signal('HUP');
my $result = collect($old);
is($result->{done}, 1, 'a stream of the old engine ends normally');
is($result->{finish}, 'length', 'with its finish reason');
$old->close;
ok(wait_until(15, sub { my $pid = $server->engine_pid; $pid && $pid != $engine }),
   'a changed context restarts the engine');
$server->wait_ready;
is(get($server, '/v1/models')->{json}{data}[0]{max_model_len}, 1024, 'with the new context');
is(essence(completion($server, long_body(10))), $short, 'and serves the same');
is(scalar(grep { $_->{title} =~ m{^\S*moe-engine serve} } $server->processes), 1, 'one engine');

# Models come and go while a worker of before has a stream: it closes nothing of its own.
my ($holder) = $server->worker_pids;
my @streams = map { hold($server, $body) } 1 .. 4;
my $model = $Moe::Server::MODEL;
my $models = join ' ', map { "moe_model $_ $model { context 128; }" } 'second', 'third';
for my $http ($models, '') {
    $server->write_config(http => $http);
    $server->reload;
    my $engines = $http ? 3 : 1;
    ok(wait_until(10, sub {
        grep({ $_->{title} =~ /moe-engine serve/ } $server->processes) == $engines;
    }), "engines: $engines");
}
ok(readlink("/proc/$holder/fd/0"), 'the first descriptor of an old worker');
for my $stream (@streams) {
    ok(collect($stream)->{done}, 'a stream goes on');
    $stream->close;
}

finish();
