# The engine dies and moe_resume is off (resume.t has it on): running streams end with an error
# event, waiting requests get 503, a new engine serves the next request; a hung engine is seen by
# /health.

use lib 't/lib';
use Moe::Test;

my $server = server(slow => 1, model_block => 'batch_sequences 2;', location => 'moe_resume 0;');
my $expected = essence(completion($server, long_body(10)));

sub is_unavailable {
    my ($answer, $name) = @_;

    is($answer->{status}, 503, "$name: status");
    like($answer->{headers}{'retry-after'}, qr/^\d+$/, "$name: Retry-After");
    is($answer->{json}{error}{type}, 'service_unavailable', "$name: error type")
        or diag($answer->{body});
    return;
}

sub kill_engine {
    my ($signal) = @_;
    my $pid = $server->engine_pid;

    $server->signal($signal, $pid);
    return wait_until(2, sub { ($server->engine_pid // 0) != $pid });
}

# One stream, one request without a stream, two waiting ones.
my $held = hold($server, long_body(1500));
my $plain = send_body($server, long_body(2000));
ok(wait_until(2, sub { running($server) == 2 }), 'both run');
my @waiters = map { send_body($server, long_body(5, stream => $_)) } \0, \1;
ok(wait_until(2, sub { waiting($server) == 2 }), 'two wait');
my $first = $server->engine_pid;
my $restarts = metric($server, 'moe_engine_restarts_total');

ok(kill_engine('KILL'), 'the engine is killed');
my $result = collect($held);
isnt($result->{error}, undef, 'the stream ends with an error event');
cmp_ok(length($result->{error}{message} // ''), '>', 5, 'which says something');
ok($result->{done}, 'then [DONE]');
is_deeply($result->{finishes}, {}, 'and no finish reason');
ok($held->{complete}, 'the body is whole');
is_unavailable($plain->read_answer, 'a running request');
is_unavailable($waiters[$_]->read_answer, "waiting request $_") for 0, 1;
$_->close for $held, $plain, @waiters;

# The next one.
ok($server->wait_ready(10), 'a new engine serves');
isnt($server->engine_pid, $first, 'it is another process');
is(essence(completion($server, long_body(10))), $expected, 'with the same answers');
is(metric($server, 'moe_engine_restarts_total'), $restarts + 1, 'the restart is counted');
ok(idle($server), 'nothing is left of the old requests');

# Dying again and again: nginx lives, answers 503 meanwhile, and recovers.
for my $signal (qw(KILL ABRT)) {
    ok(kill_engine($signal), "SIG$signal");
    my $answer = completion($server, long_body(10));
    $answer->{status} == 200 ? is(essence($answer), $expected, 'served by the new engine')
                             : is_unavailable($answer, "after SIG$signal");
    ok($server->wait_ready(20), "recovers from SIG$signal");
}
is(essence(completion($server, long_body(10))), $expected, 'and serves as before');

# A hung engine is not healthy, and is when it goes on.
my $pid = $server->engine_pid;
$server->signal('STOP', $pid);
ok(wait_until(10, sub { $server->health == 503 }), 'a stopped engine: /health is 503');
$server->signal('CONT', $pid);
ok($server->wait_ready(10), 'and 200 when it goes on');
is(essence(completion($server, long_body(10))), $expected, 'it serves');

$server->expect(qr/moe.*exited on signal/);
finish();
