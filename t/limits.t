# Limits: a full queue, waiting too long, moe_max_tokens, moe_timeout, moe_ping, moe_priority.

use lib 't/lib';
use Moe::Test;

my $server = server(slow => 1, model_block => 'batch_sequences 1; queue 2; queue_timeout 1s;',
    server => <<'END');
location /few/ {
    moe_pass demo;
    moe_max_tokens 7;
}

location /short/ {
    moe_pass demo;
    moe_timeout first=300ms;
}

location /total/ {
    moe_pass demo;
    moe_timeout total=3s;
}

location /ping/ {
    moe_pass demo;
    moe_ping 100ms;
}
END

# moe_max_tokens clamps.
for my $case ([5, 5], [7, 7], [8, 7], [undef, 7]) {
    my ($asked, $given) = @$case;
    my $answer = post($server, '/few/v1/completions', { model => 'demo', %{long_body($asked)} });
    is($answer->{json}{usage}{completion_tokens}, $given, 'max_tokens ' . ($asked // 'absent'));
    is($answer->{json}{choices}[0]{finish_reason}, 'length', 'finish reason');
}

# A ping comes while nothing else does.
my $runner = send_body($server, long_body(2000));
ok(wait_until(5, sub { running($server) == 1 }), 'one runs');
my $pinged = send_body($server, long_body(5, stream => \1), uri => '/ping/v1/completions');
$pinged->read_head;
is($pinged->{head}{status}, 200, 'moe_ping: the header is sent before the first token');
$pinged->{events} = $pinged->read_piece;
like($pinged->{events}, qr/\A: ping\n\n/, 'moe_ping: a comment');

# The queue.
my $waiter = send_body($server, long_body(5));
ok(wait_until(2, sub { waiting($server) == 2 }), 'two wait');
for my $stream (\0, \1) {
    my $full = completion($server, long_body(5, stream => $stream));
    is($full->{status}, 429, "queue full, stream $$stream: status");
    like($full->{headers}{'retry-after'}, qr/^\d+$/, "queue full, stream $$stream: Retry-After");
    is($full->{json}{error}{type}, 'rate_limit_exceeded', "queue full, stream $$stream: type")
        or diag($full->{body});
}
my $late = $waiter->read_answer;
is($late->{status}, 503, 'queue_timeout: status');
like($late->{headers}{'retry-after'}, qr/^\d+$/, 'queue_timeout: Retry-After');
my $result = collect($pinged);
ok($result->{error} && $result->{done}, 'queue_timeout after a ping: an error event and [DONE]');
$_->close for $waiter, $pinged;
is(waiting($server), 0, 'the queue is empty');

# moe_timeout first.
my $began = time();
my $slow = post($server, '/short/v1/completions', { model => 'demo', %{long_body(5)} });
is($slow->{status}, 503, 'moe_timeout first: status');
like($slow->{headers}{'retry-after'}, qr/^\d+$/, 'moe_timeout first: Retry-After');
cmp_ok(time() - $began, '<', 5, 'moe_timeout first: in time');
$runner->close;
ok(idle($server), 'idle');

# moe_timeout total: a stream that takes too long ends with an error event.
$began = time();
$result = collect_all($server, '/total/v1/completions', long_body(1500));
ok($result->{error} && $result->{done}, 'moe_timeout total: an error event and [DONE]');
cmp_ok(time() - $began, '<', 8, 'moe_timeout total: in time');
ok(idle($server), 'moe_timeout total cancels');

# After a wait the queued request is served.
$runner = send_body($server, long_body(2000));
ok(wait_until(5, sub { running($server) == 1 }), 'one runs');
$waiter = send_body($server, long_body(5));
ok(wait_until(2, sub { waiting($server) == 1 }), 'one waits');
$runner->close;
is($waiter->read_answer->{status}, 200, 'and is served');
$waiter->close;

# moe_priority: a request's own priority moves it back, never before its location.
$server = server(slow => 1, workers => 1, model_block => 'batch_sequences 1;',
    http => "log_format tags \$arg_tag;", server => <<'END');
access_log %PREFIX%/tags.log tags;

location /late/ {
    moe_pass demo;
    moe_priority 10;
}
END
$runner = send_body($server, long_body(2000));
ok(wait_until(5, sub { running($server) == 1 }), 'priority: one runs');
my @waiters;
for my $case (['late', '/late', 0], ['own', '', 20], ['pushing', '/late', -100], ['largest', '/late',
    2 ** 31 - 1], ['first', '', 0])
{
    my ($tag, $prefix, $priority) = @$case;
    push @waiters, send_body($server, long_body(3, priority => $priority),
                             uri => "$prefix/v1/completions?tag=$tag");
    ok(wait_until(5, sub { waiting($server) == @waiters }), "priority: $tag waits");
}
$runner->close;
is($_->read_answer->{status}, 200, 'priority: served') for @waiters;
$_->close for @waiters;
my @order = wait_until(3, sub { $server->log_text('tags.log') =~ /largest/ })
    ? grep { /^\w/ } split /\n/, $server->log_text('tags.log') : ();
is("@order", 'first late pushing own largest', 'priority: the order');

finish();
