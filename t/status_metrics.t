# moe_status and moe_metrics: well formed, and their numbers are true.

use lib 't/lib';
use Moe::Test;

my $server = server();

# Prometheus text format.
completion($server, long_body(10));
my $page = get($server, '/metrics');
like($page->{headers}{'content-type'}, qr{^text/plain; version=0\.0\.4}, 'metrics: content type');
my (%type, @stray);
for my $line (split /\n/, $page->{body}) {
    if ($line =~ /^# TYPE (\w+) (counter|gauge|histogram)$/) {
        is($type{$1}, undef, "$1 has one type");
        $type{$1} = $2;
    } elsif ($line !~ /^# HELP \w+ .+/) {
        my ($name, $base) = $line =~ /^((moe_\w+?)(?:_bucket|_sum|_count)?)(?:\{[^}]*\})? \S+$/;
        push @stray, $line unless $name && ($type{$name} || ($type{$base} // '') eq 'histogram');
    }
}
is_deeply(\@stray, [], 'metrics: every sample has a type');
for my $name (qw(num_requests_running num_requests_waiting kv_cache_usage_perc engine_up)) {
    is($type{"moe_$name"}, 'gauge', "moe_$name");
}
for my $name (qw(engine_restarts_total requests_resumed_total prompt_tokens_total
                 generation_tokens_total num_preemptions_total request_success_total)) {
    is($type{"moe_$name"}, 'counter', "moe_$name");
}
my @histograms = map { "moe_$_" } qw(time_to_first_token_seconds inter_token_latency_seconds
    request_queue_time_seconds e2e_request_latency_seconds request_prompt_tokens
    request_generation_tokens);
my $samples = metrics($server);
for my $name (@histograms) {
    is($type{$name}, 'histogram', $name);
    my @buckets = $page->{body} =~ /^\Q${name}\E_bucket\{[^}]*le="([^"]+)"[^}]*\} (\d+)$/mg;
    my (@bounds, @counts);
    while (my ($bound, $count) = splice @buckets, 0, 2) {
        push @bounds, $bound eq '+Inf' ? 9e99 : $bound;
        push @counts, $count;
    }
    is_deeply(\@bounds, [sort { $a <=> $b } @bounds], "$name: borders rise");
    is_deeply(\@counts, [sort { $a <=> $b } @counts], "$name: cumulative");
    is($bounds[-1], 9e99, "$name: +Inf is last");
    is($counts[-1], metric($server, "${name}_count"), "$name: +Inf is the count");
}

# Counters go up by what was served.
my @names = map { "moe_$_" } qw(prompt_tokens_total generation_tokens_total
    request_generation_tokens_count request_generation_tokens_sum time_to_first_token_seconds_count
    inter_token_latency_seconds_count e2e_request_latency_seconds_count);
my %before = map { $_ => metric($server, $_) } @names;
my @answers = parallel($server, map { ['/v1/completions', long_body(10 + $_)] } 1 .. 5);
my ($prompt, $generated) = (0, 0);
for my $answer (@answers) {
    $prompt += $answer->{json}{usage}{prompt_tokens};
    $generated += $answer->{json}{usage}{completion_tokens};
}
is($generated, 65, 'five answers');
my %expected = ($names[0] => $prompt, $names[1] => 65, $names[2] => 5, $names[3] => 65,
                $names[4] => 5, $names[5] => 60, $names[6] => 5);
is(metric($server, $_) - $before{$_}, $expected{$_}, $_) for @names;
is(metric($server, 'moe_engine_up'), 1, 'engine up');
my ($stops) = grep { /^moe_request_success_total\{.*finished_reason="stop"/ } keys %$samples;
my ($lengths) = grep { /^moe_request_success_total\{.*finished_reason="length"/ } keys %$samples;
my $former = metrics($server);
chat($server, 'What is the default of keepalive_timeout?');
$samples = metrics($server);
is($samples->{$stops} - $former->{$stops}, 1, 'finished by stop');
is($samples->{$lengths} - $former->{$lengths}, 0, 'not by length');
like($lengths, qr/model="demo"/, 'labelled with the model');

# Gauges, while something runs.
my $held = hold($server);
is(running($server), 1, 'one runs');
my $usage = metric($server, 'moe_kv_cache_usage_perc');
cmp_ok($usage, '>', 0, 'it uses cache');
cmp_ok($usage, '<', 1, 'as a fraction');

# moe_status says the same in JSON.
my $status = wait_until(2, sub {    # a heartbeat later
    my $answer = get($server, '/status');
    return ($answer->{json}{models}[0]{running} // 0) == 1 && $answer;
}) // get($server, '/status');
is($status->{status}, 200, 'status');
is($status->{headers}{'content-type'}, 'application/json', 'status: content type');
my ($model) = ref $status->{json}{models} eq 'ARRAY'
    ? grep { $_->{name} eq 'demo' } @{$status->{json}{models}} : ();
is($model->{state}, 'ready', 'status: state');
is($model->{running}, 1, 'status: running');
is($model->{waiting}, 0, 'status: waiting');
is($model->{context}, 2048, 'status: context');
is($model->{pid}, $server->engine_pid, 'status: pid');
$held->close;
ok(idle($server), 'idle');
is(metric($server, 'moe_kv_cache_usage_perc'), 0, 'no cache in use');

# Only GET and HEAD.
is(post($server, $_, '{}')->{status}, 405, "POST $_") for '/status', '/metrics', '/health';
is(get($server, '/health')->{json}{status}, 'ok', '/health');

finish();
