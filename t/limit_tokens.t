# Limits in tokens: what is charged and what is given back, refusals, several zones, reloads.  Hourly
# rates keep the arithmetic exact: a touched account gets nothing back in the first hour.

use lib 't/lib';
use Moe::Load;
use Moe::Test;

my $locations = join '', map { my ($path, $lines) = @$_; <<"END" }
location /$path/ {
    moe_pass demo;
    $lines
}
END
    ['exact', 'moe_limit_tokens zone=exact;'],
    ['both', 'moe_limit_tokens zone=exact; moe_limit_tokens zone=other burst=120;'],
    ['either', 'moe_limit_tokens zone=other burst=120; moe_limit_tokens zone=exact;'],
    ['pinged', 'moe_limit_tokens zone=exact; moe_ping 5ms;'],
    ['small', 'moe_limit_tokens zone=small;'],
    ['full', 'moe_limit_tokens zone=full;'],
    ['fast', 'moe_limit_tokens zone=fast;'],
    ['busy', 'moe_limit_tokens zone=busy;'];
my $zones = <<'END';
moe_limit_tokens_zone $http_x_who zone=exact:1m rate=1000t/h;
moe_limit_tokens_zone $http_x_other zone=other:1m rate=1000t/h;
moe_limit_tokens_zone $http_x_who zone=small:32k rate=1000t/h;
moe_limit_tokens_zone $http_x_who$http_x_who$http_x_who$http_x_who$http_x_who$http_x_who$http_x_who
    zone=full:32k rate=1000t/h;
moe_limit_tokens_zone $http_x_who zone=fast:1m rate=40t/s;
moe_limit_tokens_zone $http_x_who zone=busy:1m rate=100t/s;
log_format tokens '$request_uri $moe_prompt_tokens $moe_completion_tokens';
END
my $server = server(http => $zones, server => "access_log %PREFIX%/tokens.log tokens;\n$locations");
my %workers;

# An answer, of whichever worker, with {left}: x-ratelimit-remaining-tokens.
sub ask {
    my ($path, $who, $body, %headers) = @_;
    my $answer = post($server, "/$path/v1/completions", { model => 'demo', %$body },
                      headers => { 'X-Who' => $who, %headers });

    $workers{$answer->{headers}{'x-worker'}} = 1 if $answer->{status} == 200;
    $answer->{left} = $answer->{headers}{'x-ratelimit-remaining-tokens'};
    return $answer;
}

sub total {
    my ($answer) = @_;

    return $answer->{json}{usage}{total_tokens};
}

# What is left for $who; then there is $probe less.
my %tiny = (prompt => 'a', max_tokens => 1);
my $probe = total(completion($server, \%tiny));
sub left {
    my ($who, $path) = @_;
    my $answer = ask($path // 'exact', $who, \%tiny);

    die "the probe was refused\n" if $answer->{status} != 200;
    return $answer->{left} + $probe;
}

# Charged exactly, in both workers.
my $left = 1000;
my $answer;
for (1 .. 40) {
    $answer = ask('exact', 'alice', long_body(5));
    is($answer->{left}, $left -= total($answer), 'what is left');
    last if keys %workers == 2 && $_ > 3;
}
is(scalar keys %workers, 2, 'both workers have served');
is($answer->{headers}{'x-ratelimit-limit-tokens'}, 1000, 'the limit');
like($answer->{headers}{'x-ratelimit-reset-tokens'}, qr/^1h\d+m\d+s$/, 'when all is left again');
is(ask('exact', 'bob', long_body(5))->{left}, 1000 - total($answer), 'another key');
is(ask('exact', '', long_body(5))->{left}, undef, 'an empty key is not limited');
is(get($server, '/exact/v1/models', headers => { 'X-Who' => 'alice' })->{headers}
   {'x-ratelimit-limit-tokens'}, undef, 'nor are other routes');

# What is charged, and what is not.
sub uses {
    my ($name, $expected, $action) = @_;
    my $who = $name =~ s/\W/-/gr;
    my $tokens = $action->($who) // 0;

    is(left($who), 1000 - $tokens, "$name: charged");
    cmp_ok($tokens, $expected ? '>' : '==', 0, "$name: something, or nothing");
    return;
}

# The tokens that the log has of a request.
sub logged_tokens {
    my ($uri) = @_;

    return wait_until(5, sub {
        $server->log_text('tokens.log') =~ /^\Q$uri\E (\d+) (\d+)$/m ? $1 + $2 : 0 });
}

my $long = 'Directive: gzip ' x 40;
uses('a text', 1, sub { total(ask('exact', $_[0], { prompt => $long, max_tokens => 3 })) });
uses('token ids', 1, sub { total(ask('exact', $_[0], { prompt => [(5) x 200], max_tokens => 3 })) });
uses('several prompts', 1, sub {
    total(ask('exact', $_[0], long_body(5, prompt => ['Syntax: gzip', 'a', 'Default:']))) });
uses('several answers', 1, sub { total(ask('exact', $_[0], long_body(5, n => 3, best_of => 3))) });
uses('a stream', 1, sub {
    my $result = collect_all($server, '/exact/v1/completions',
        long_body(9, stream_options => { include_usage => \1 }), headers => { 'X-Who' => $_[0] });
    return $result->{usage}{total_tokens} });
uses('an aborted stream', 1, sub {
    hold($server, long_body(500), uri => '/exact/v1/completions?aborted',
         headers => { 'X-Who' => $_[0] })->close;
    return logged_tokens('/exact/v1/completions?aborted') });
uses('a stream that is resumed', 1, sub {
    my $client = hold($server, long_body(450, stream_options => { include_usage => \1 }),
                      uri => '/exact/v1/completions', headers => { 'X-Who' => $_[0] });
    $server->signal('KILL', $server->engine_pid);
    my $usage = collect($client)->{usage};
    $client->close;
    $server->wait_ready;
    return $usage->{total_tokens} });
$server->expect(qr/moe.*exited on signal/);
uses('a client that leaves before it is admitted', 0, sub {
    my $stopped = $server->engine_pid;
    $server->signal('STOP', $stopped);
    my $client = client($server)->send_request('POST', '/exact/v1/completions?left',
        { model => 'demo', %tiny }, headers => { 'X-Who' => $_[0] });
    $client->close;
    ok(wait_until(5, sub { $server->log_text('tokens.log') =~ /\?left - -$/m }), 'it is gone');
    $server->signal('CONT', $stopped);
    return 0 });
uses('no JSON', 0, sub {
    is(post($server, '/exact/v1/completions', '{', headers => { 'X-Who' => $_[0] })->{status}, 400,
       'no JSON');
    return 0 });
uses('an unknown model', 0, sub {
    is(ask('exact', $_[0], long_body(5, model => 'none'))->{status}, 404, 'an unknown model');
    return 0 });
uses('too long', 0, sub {
    is(ask('exact', $_[0], { prompt => 'a', max_tokens => 5000 })->{status}, 400, 'too long');
    return 0 });
uses('one of several too long', 0, sub {
    my $client = stream($server, '/exact/v1/completions',
        long_body(50, prompt => ['a', 'a b ' x 200_000]), headers => { 'X-Who' => $_[0] });
    is($client->{head}{status}, 400, 'one of several too long');
    $client->close;
    return 0 });
uses('a body much larger than its prompt', 1, sub {
    my $answer = post($server, '/exact/v1/completions',
        json_encode({ model => 'demo', %tiny }) . ' ' x 9000, headers => { 'X-Who' => $_[0] });
    return total($answer) });

# Refused on arrival: by what the body promises.
sub is_refused {
    my ($refused, $name, $message) = @_;
    my $headers = $refused->{headers};

    is($refused->{status}, 429, "$name: status");
    is($refused->{json}{error}{type}, 'rate_limit_exceeded', "$name: type");
    is($refused->{json}{error}{code}, 'rate_limit_exceeded', "$name: code");
    like($refused->{json}{error}{message}, $message, "$name: message");
    like($headers->{'retry-after'}, qr/^[1-9]\d*$/, "$name: Retry-After");
    like($headers->{"x-ratelimit-$_-tokens"}, qr/^\d+m?s?/, "$name: x-ratelimit-$_-tokens")
        for qw(limit remaining reset);
    like($headers->{'x-request-id'}, qr/\w/, "$name: X-Request-Id");
    return;
}

ask('exact', 'carol', { prompt => $long, max_tokens => 500, ignore_eos => \1 });
my $before = left('carol');
my $refused = ask('exact', 'carol', { prompt => 'a' x 4000, max_tokens => 1 });
is_refused($refused, 'on arrival', qr/^the request needs 1000 tokens, of the limit of 1000/);
is($refused->{left}, $before - $probe, 'on arrival: what is left');
my $size = 4 * ($before - $probe);
$refused = ask('exact', 'carol', { prompt => 'a' x $size, max_tokens => 1 });
is_refused($refused, 'on arrival, once it fits',
           qr/^the request needs \d+ tokens, of the limit of 1000 tokens \d+ are left: try again/);
cmp_ok($refused->{headers}{'retry-after'}, '>', 3600, 'on arrival: after the advance');
is(left('carol'), $before - $probe, 'on arrival: a refusal costs nothing');

# Refused once the prompt is counted: no 200 leaves, and no ping.
my %ids = (prompt => [(5) x 900], max_tokens => 1);
ask('exact', 'dave', { prompt => 'a', max_tokens => 200, ignore_eos => \1 });
$before = left('dave');
is_refused(ask('exact', 'dave', \%ids), 'admitted', qr/^the request needs 900 tokens, of the limit/);
for my $path (qw(exact pinged)) {
    my $client = stream($server, "/$path/v1/completions", \%ids, headers => { 'X-Who' => 'dave' });
    is($client->{head}{status}, 429, "admitted: no stream in $path");
    is($client->{head}{headers}{'x-ratelimit-remaining-tokens'}, $before - $probe,
       'admitted: what is left does not count the request itself');
    $client->close;
}
my $engine = $server->engine_pid;
$server->signal('STOP', $engine);
my $client = client($server)->send_request('POST', '/pinged/v1/completions',
    { model => 'demo', stream => \1, %ids }, headers => { 'X-Who' => 'dave' });
ok(!$client->closed(0.3) && $client->{buffer} eq '', 'admitted: no ping while nobody has counted');
$server->signal('CONT', $engine);
is($client->read_head->{status}, 429, 'admitted: then a refusal');
$client->close;
is(left('dave'), $before - $probe, 'admitted: a refusal costs nothing');
is_refused(ask('exact', 'erin', { prompt => [(5) x 1001], max_tokens => 1 }), 'larger than any',
           qr/^the request needs 1001 tokens, the limit is 1000$/);
is(left('erin'), 1000, 'larger than any: costs nothing');

# An answer that has begun is finished, and what it overdraws is owed.
$answer = ask('exact', 'frank', { prompt => 'a', max_tokens => 1500, ignore_eos => \1 });
is($answer->{json}{usage}{completion_tokens}, 1500, 'overdrawn: the answer is whole');
is($answer->{left}, 0, 'overdrawn: nothing is left');
$refused = ask('exact', 'frank', \%tiny);
is_refused($refused, 'overdrawn', qr/0 are left/);
cmp_ok($refused->{headers}{'retry-after'}, '>', 3600 * 1.5, 'overdrawn: until it is paid off');

# What a stream generates is charged while it runs.
$client = hold($server, long_body(500), uri => '/exact/v1/completions',
                  headers => { 'X-Who' => 'victor' });
my $asked = 0;
ok(wait_until(5, sub { left('victor') + $probe * $asked++ < 950 }), 'charged as it comes');
$client->close;

# Several zones: the tighter one is told, and what one refuses is not charged to the others.
my %grace = ('X-Other' => 'grace');
$answer = ask('both', 'grace', long_body(5), %grace);
is($answer->{headers}{'x-ratelimit-limit-tokens'}, 120, 'two zones: the one with less left');
is($answer->{left}, 120 - total($answer), 'two zones: what is left');
is(left('grace'), 1000 - total($answer), 'two zones: the other one');
is(ask('either', 'trudy', long_body(5), 'X-Other' => 'trudy')->{headers}
   {'x-ratelimit-limit-tokens'}, 120, 'two zones: in any order');
is_refused(ask('both', 'grace', { prompt => 'a' x 500, max_tokens => 1 }, %grace), 'two zones',
           qr/limit of 120/);
is(left('grace'), 1000 - total($answer) - $probe, 'two zones: the other one is not charged');
$answer = ask('both', '', long_body(5), %grace);
is($answer->{headers}{'x-ratelimit-limit-tokens'}, 120, 'two zones: one key is empty');

# A small zone forgets the accounts that were not used for longest.
my @statuses = map { ask('small', "who-$_" x 40, \%tiny)->{status} }
    1 .. 150;
is(scalar(grep { $_ != 200 } @statuses), 0, 'a small zone forgets');
is(left('who-150' x 40, 'small'), 1000 - $probe, 'a small zone: the last one is there');
is(left('who-1' x 40, 'small'), 1000, 'a small zone: the first one is not');

# A zone without room for one account.
is(ask('full', 'x' x 5000, \%tiny)->{status}, 503, 'no room: status');
is(ask('full', 'x' x 50, \%tiny)->{status}, 200, 'room for others');
$server->expect(qr/could not allocate node in moe_limit_tokens_zone "full"/);

# After Retry-After it fits.
for (1 .. 20) {
    ask('fast', 'heidi', long_body(60));
    $refused = ask('fast', 'heidi', \%tiny);
    last if $refused->{status} == 429;
}
is_refused($refused, 'fast', qr/try again/);
sleep($refused->{headers}{'retry-after'});
is(ask('fast', 'heidi', \%tiny)->{status}, 200,
   'after Retry-After it fits');

# Clients that never stop asking, at both workers: not more than the rate, and nobody is refused
# while there is something left.
my $body = long_body(20);
my $began = time();
my $load = start_clients($server, 4, sub {
    my $got = ask('busy', 'ivan', $body);
    return { status => $got->{status}, left => $got->{left}, total => total($got) // 0 };
});
sleep(4);
my @results = stop_clients($load);
my $elapsed = time() - $began;
my %count;
my $used = 0;
for my $result (@results) {
    $count{$result->{status} // $result->{died}}++;
    $used += $result->{total} // 0;
}
my @wrong = grep { $_->{status} == 429 && $_->{left} > 40 } @results;
is_deeply([sort keys %count], [200, 429], 'busy: served and refused') or diag(json_encode(\%count));
cmp_ok($used, '<=', 100 * $elapsed + 4 * 30, 'busy: not more than the rate');
is(scalar @wrong, 0, 'busy: nobody is refused for nothing');

# Reloads.
is(left('alice'), $left, 'accounts in debt are not forgotten for others');
$server->reload;
is(left('alice'), $left - $probe, 'reload: accounts stay');
my $text = $zones =~ s/\$http_x_who zone=exact/\$http_x_other zone=exact/r;
$server->write_config(http => $text);
$server->signal('HUP');
ok(wait_until(5, sub { $server->log_text =~ /"exact" uses the "\$http_x_other" key while/ }),
   'reload: another key is refused');
$server->expect(qr/uses the .* key while previously/);
is(left('alice'), $left - 2 * $probe, 'reload: and what was stays');
$server->write_config(http => $zones =~ s{exact:1m rate=1000t/h}{exact:1m rate=1000t/s}r);
$server->reload;
ok(wait_until(10, sub { left('alice') == 1000 }), 'reload: a higher rate holds for what was, too');
$server->write_config(http => $zones =~ s/exact:1m/exact:2m/r);
$server->reload;
is(left('alice'), 1000, 'reload: another size begins anew');

# What waits in the queue is looked at again when its turn comes.
$server = server(slow => 1, model_block => 'batch_sequences 1;',
    http => "moe_limit_tokens_zone \$http_x_who zone=exact:1m rate=100t/h;", server => <<'END');
location /exact/ {
    moe_pass demo;
    moe_limit_tokens zone=exact;
}

location /pinged/ {
    moe_pass demo;
    moe_limit_tokens zone=exact;
    moe_ping 20ms;
}

location /short/ {
    moe_pass demo;
    moe_limit_tokens zone=exact;
    moe_timeout first=300ms;
}
END
my %judy = (headers => { 'X-Who' => 'judy' });
my $blocker = send_body($server, long_body(2000));
ok(wait_until(5, sub { running($server) == 1 }), 'queue: one runs');
my @waiters;
for my $body (long_body(110), \%tiny) {
    push @waiters, client($server)->send_request('POST', '/exact/v1/completions',
                                                 { model => 'demo', %$body }, %judy);
    ok(wait_until(5, sub { waiting($server) == @waiters }), 'queue: one more waits');
}
my $pinged = stream($server, '/pinged/v1/completions', \%tiny, %judy);
is($pinged->{head}{status}, 200, 'queue: a ping was the first of a stream');
$blocker->close;
is($waiters[0]->read_answer->{json}{usage}{completion_tokens}, 110, 'queue: one overdraws');
is_refused($waiters[1]->read_answer, 'queue', qr/0 are left/);
my $result = collect($pinged);
is($result->{error}{code}, 'rate_limit_exceeded', 'queue: the stream ends with an error');
is_deeply([$result->{text}, $result->{done}], ['', 1], 'queue: and nothing else');
$_->close for @waiters, $pinged;

# What the server could not serve costs nothing.
$blocker = send_body($server, long_body(2000));
ok(wait_until(5, sub { running($server) == 1 }), 'timeout: one runs');
is(ask('short', 'kim', \%tiny)->{status}, 503, 'timeout: a 503');
$blocker->close;
is(left('kim'), 100, 'timeout: costs nothing');

finish();
