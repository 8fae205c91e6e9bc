# The engine dies and nobody notices but by a pause: streams, answers in one piece and waiting
# requests are taken up by the next engine, byte for byte; at most moe_resume times.

use lib 't/lib';
use Moe::Test;

my %how = (model_block => 'batch_sequences 8;', location => 'moe_ping 50ms;');
my $server = server(%how);

sub kill_engine {
    my ($on) = @_;
    my $pid = $on->engine_pid;

    $on->signal('KILL', $pid);
    return wait_until(2, sub { ($on->engine_pid // 0) != $pid });
}

# What a client sees of a stream: all but ids, times, cached tokens, and which of several choices is
# ahead.
sub seen {
    my ($result) = @_;
    my %events;

    push @{$events{$_->{index}}}, $_ for map { @{$_->{choices} // []} } @{$result->{events}};
    return json_encode([@$result{qw(finishes done complete error)}, counts($result->{usage}),
                        \%events]);
}

# As is(), for long texts.
sub is_same {
    my ($got, $expected, $name) = @_;

    return 1 if ok($got eq $expected, $name);
    my $common = ($got ^ $expected) =~ /^(\0*)/ ? length $1 : 0;
    diag(substr($_, $common > 100 ? $common - 100 : 0, 300)) for $got, $expected;
    return 0;
}

my %usage = (stream_options => { include_usage => \1 });
my @streams = (
    ['greedy', '/v1/completions', long_body(450)],
    ['seeded, log-probabilities', '/v1/completions',
     long_body(450, temperature => 1, seed => 7, logprobs => 2, return_token_ids => \1)],
    ['penalties', '/v1/completions',
     long_body(450, presence_penalty => 1, frequency_penalty => 0.5, repetition_penalty => 1.2)],
    ['chat', '/v1/chat/completions',
     { messages => [{ role => 'user', content => 'What is the default of keepalive_timeout?' }],
       temperature => 0, ignore_eos => \1, max_tokens => 450, logprobs => \1 }],
    ['several prompts', '/v1/completions',
     long_body(450, prompt => ['Syntax: gzip', 'Directive: proxy_pass', 'a'])],
    ['several answers', '/v1/completions', long_body(450, temperature => 1, seed => 3, n => 2)],
    ['echo', '/v1/completions', long_body(450, echo => \1, prompt_logprobs => 1)],
);
my %solo = map { $_->[0] => seen(collect_all($server, $_->[1], { %{$_->[2]}, %usage })) } @streams;
my %whole = map { $_->[0] => essence(post($server, $_->[1], { model => 'demo', %{$_->[2]} })) }
    @streams;

# Streams are cut in their middle (their clients do not read, so they cannot end); answers in one
# piece and waiting requests with them.
my @clients = map { hold($server, { %{$_->[2]}, %usage }, uri => $_->[1]) } @streams;
my @plain = map { client($server)->send_request('POST', $_->[1], { model => 'demo', %{$_->[2]} }) }
    @streams;
ok(wait_until(5, sub { waiting($server) > 0 }), 'some run, some wait');
ok(kill_engine($server), 'the engine is killed');
is_same(seen(collect($clients[$_])), $solo{$streams[$_][0]}, "a stream: $streams[$_][0]")
    for 0 .. $#streams;
is_same(essence($plain[$_]->read_answer), $whole{$streams[$_][0]}, "in one piece: $streams[$_][0]")
    for 0 .. $#streams;
cmp_ok(metric($server, 'moe_requests_resumed_total'), '>', 8, 'they are counted');
$_->close for @clients, @plain;
ok(idle($server), 'nothing is left of them');

# Without a seed: the worker's is sent again, so what came before and what comes then is one answer.
# Its tokens have the probabilities that they have as a prompt.
my $client = hold($server,
    long_body(450, temperature => 1, return_token_ids => \1, logprobs => 0));
ok(kill_engine($server), 'unseeded: the engine is killed');
my $result = collect($client);
my @ids = map { @{$_->{choices}[0]{token_ids} // []} } @{$result->{events}};
my @logprobs = map { @{($_->{choices}[0]{logprobs} // {})->{token_logprobs} // []} }
    @{$result->{events}};
is(scalar @ids, 450, 'unseeded: every token once');
my $echo = completion($server, { prompt => [tokenize('Syntax: gzip'), @ids], max_tokens => 0,
                                 echo => \1, logprobs => 0 });
my @expected = @{$echo->{json}{choices}[0]{logprobs}{token_logprobs}}[-450 .. -1];
is(json_encode(\@logprobs), json_encode(\@expected), 'unseeded: with its probability');
$client->close;

# What comes while there is no engine waits for the next one, too.
# (Who would start it is stopped; returns its pid.)
sub take_down {
    my ($on) = @_;
    my $pid = $on->engine_pid;
    my ($engine) = grep { $_->{pid} == $pid } $on->processes;

    $on->signal('STOP', $engine->{ppid});
    $on->signal('KILL', $pid);
    wait_until(5, sub { $on->health == 503 }) or die "the engine lives\n";
    return $engine->{ppid};
}

my $supervisor = take_down($server);
my @new = map { client($server)->send_request('POST', $_->[1], { model => 'demo', %{$_->[2]} }) }
    @streams;
sleep(0.2);
$server->signal('CONT', $supervisor);
is_same(essence($new[$_]->read_answer), $whole{$streams[$_][0]}, "new requests: $streams[$_][0]")
    for 0 .. $#streams;
$_->close for @new;

# Pings bridge the gap.
$client = hold($server, { %{long_body(450)}, %usage });
my $pings = $client->{pings};
ok(kill_engine($server), 'pings: the engine is killed');
is_same(seen(collect($client)), $solo{greedy}, 'pings: the stream goes on');
cmp_ok($client->{pings}, '>', $pings, 'pings: they come meanwhile');
$client->close;

# Killed more often than it may be resumed.  (A new server: the back-off of this one grows.)
$server->expect(qr/moe.*exited on signal/);
$server = server(%how);
$client = hold($server, long_body(1500));
my $other = send_body($server, long_body(2000));
for (1, 2) {
    ok(wait_until(20, sub { running($server) == 2 }), "twice: both run, $_");
    ok(kill_engine($server), "twice: the engine is killed, $_");
}
$result = collect($client);
is($result->{error}{type}, 'service_unavailable', 'twice: the stream ends with an error');
ok($result->{done}, 'twice: then [DONE]');
is_deeply($result->{finishes}, {}, 'twice: and no finish reason');
my $answer = $other->read_answer;
is($answer->{status}, 503, 'twice: the other one is a 503');
like($answer->{headers}{'retry-after'}, qr/^\d+$/, 'twice: with Retry-After');
$_->close for $client, $other;
ok($server->wait_ready, 'a new engine serves');

# As many as the engine would take wait; the others are told at once.
my $small = server(workers => 1, model_block => 'batch_sequences 1; queue 1;');
$supervisor = take_down($small);
my @crowd = map { send_body($small, long_body(5)) } 1 .. 4;
ok(wait_until(5, sub { 2 == grep { IO::Select->new($_->{socket})->can_read(0) } @crowd }),
   'a crowd: two are told at once');
$small->signal('CONT', $supervisor);
is_deeply([sort map { $_->read_answer->{status} } @crowd], [200, 200, 503, 503],
          'a crowd: as many as the engine would take');
$_->close for @crowd;
$small->expect(qr/moe.*exited on signal/);

# A worker that shuts down takes its streams along to the next engine, too.
$client = hold($server, { %{long_body(450)}, %usage });
$server->reload;
ok(kill_engine($server), 'reload: the engine is killed');
is_same(seen(collect($client)), $solo{greedy}, 'reload: the old worker goes on with it');
$client->close;

# There is no next engine when nginx quits.
$server->wait_ready;
$client = hold($server, long_body(1500));
$server->signal('QUIT');
ok(wait_until(5, sub { !$server->listening }), 'quit: nginx stops');
$server->signal('KILL', $server->engine_pid);
isnt(collect($client)->{error}, undef, 'quit: the stream ends with an error');
$client->close;

$server->expect(qr/moe.*exited on signal/);
finish();
