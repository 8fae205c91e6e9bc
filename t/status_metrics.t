# moe_status and moe_metrics: well formed, and their numbers are true.

use lib 't/lib';
use Moe::Test;

my $server = server(server => <<'END');
location = /experts { moe_metrics experts; }
location /once/ { moe_pass demo; moe_resume 0; }
END

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
                 generation_tokens_total num_preemptions_total request_success_total
                 prefix_cache_queries_total prefix_cache_hits_total http_requests_total
                 streams_broken_total)) {
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

# Counters and counts of histograms, by name and, where it has one, a label besides the model's.
sub counters {
    my $samples = metrics($server);
    my %counts;

    for my $sample (keys %$samples) {
        my ($name, $labels) = $sample =~ /^moe_(\w+)\{model="demo"(.*)\}$/ or next;
        next unless $name =~ /_total$|_tokens_(?:sum|count)$|_seconds_count$/;
        next if $name =~ /^(?:step|prefix_cache)/;
        $counts{join ' ', $name, $labels =~ /"(\w+)"/} = $samples->{$sample};
    }
    return \%counts;
}

# What was added to the counts since $before; as soon as it is what is expected.
sub added_are {
    my ($before, $expected, $name) = @_;
    my %added;

    wait_until(5, sub {
        my $now = counters();
        %added = map { $now->{$_} - ($before->{$_} // 0) ? ($_ => $now->{$_} - $before->{$_}) : () }
            keys %$now;
        return json_encode(\%added) eq json_encode($expected);
    });
    return is_deeply(\%added, $expected, $name);
}

# What is counted is what was served, exactly.  The engine sees each of n choices as a request.
ok(idle($server), 'idle');
my $before = counters();
my ($prompt, $generated) = (0, 0);
my @answers = parallel($server, map { ['/v1/completions', long_body(10 + $_)] } 1 .. 5);
push @answers, chat($server, 'What is the default of keepalive_timeout?');
is($answers[-1]{json}{choices}[0]{finish_reason}, 'stop', 'one stops by itself');
push @answers, completion($server, long_body(20, n => 3));
for my $answer (@answers) {
    $prompt += @{$answer->{json}{choices}} * $answer->{json}{usage}{prompt_tokens};
    $generated += $answer->{json}{usage}{completion_tokens};
}
is(completion($server, { prompt => 5 })->{status}, 400, 'a wrong prompt');
is(completion($server, long_body(5000))->{status}, 400, 'too long, says the engine');
is(completion($server, long_body(5, model => 'other'))->{status}, 404, 'a wrong model');
is(get($server, '/v1/completions')->{status}, 405, 'a GET is not counted');
added_are($before, {
    prompt_tokens_total => $prompt,
    generation_tokens_total => $generated,
    'request_success_total length' => 8,
    'request_success_total stop' => 1,
    'request_success_total error' => 1,
    'http_requests_total 200' => 7,
    'http_requests_total 400' => 2,
    'http_requests_total 404' => 1,
    request_prompt_tokens_count => 9,
    request_prompt_tokens_sum => $prompt,
    request_generation_tokens_count => 9,
    request_generation_tokens_sum => $generated,
    time_to_first_token_seconds_count => 9,
    request_queue_time_seconds_count => 9,
    e2e_request_latency_seconds_count => 9,
    inter_token_latency_seconds_count => $generated - 9,
}, 'counts are what was served');

# One more token than pauses between them, also of a stream that was cut off.
$before = counters();
hold($server)->abort;
ok(idle($server), 'a client goes away');
my $now = counters();
my %cut = map { $_ => $now->{$_} - $before->{$_} } keys %$now;
is($cut{'request_success_total cancelled'}, 1, 'cancelled');
is($cut{e2e_request_latency_seconds_count}, 0, 'it has no end');
is($cut{generation_tokens_total}, 1 + $cut{inter_token_latency_seconds_count}, 'tokens of it');
ok(wait_until(5, sub {
    counters()->{'http_requests_total 200'} == $before->{'http_requests_total 200'} + 1;
}), 'its status was sent');

# Every row that went through the model was routed to four experts, but for the first layer.
my $rows = metric($server, 'moe_step_rows_total');
my %rows = (1 => 0);
my $experts = get($server, '/experts')->{body};
like($experts, qr/^# TYPE moe_expert_load counter$/m, 'expert load');
while ($experts =~ /^moe_expert_load\{model="demo",layer="(\d)",expert="\d+"\} (\d+)$/mg) {
    $rows{$1} += $2;
}
is_deeply(\%rows, { map { $_ => 4 * $rows } 1 .. 3 }, 'is that of the rows');
unlike($page->{body}, qr/expert_load/, 'only where it is asked for');

# Gauges, while something runs.
my $held = hold($server);
is(running($server), 1, 'one runs');
my $usage = metric($server, 'moe_kv_cache_usage_perc');
cmp_ok($usage, '>', 0, 'it uses cache');
cmp_ok($usage, '<', 1, 'as a fraction');

# moe_status says the same in JSON.
my $status = get($server, '/status');
is($status->{status}, 200, 'status');
is($status->{headers}{'content-type'}, 'application/json', 'status: content type');
my ($model) = ref $status->{json}{models} eq 'ARRAY'
    ? grep { $_->{name} eq 'demo' } @{$status->{json}{models}} : ();
is($model->{state}, 'ready', 'status: state');
is_deeply($model->{queue}, { waiting => 0, limit => 256 }, 'status: queue');
is_deeply([@{$model->{batch}}{qw(running sequences tokens)}], [1, 64, 512], 'status: batch');
is_deeply([sort keys %{$model->{cache}}], [sort qw(blocks used queried_tokens hit_tokens
    preemptions)], 'status: cache');
cmp_ok($model->{cache}{used}, '>', 0, 'status: some of it is used');
cmp_ok($model->{cache}{used}, '<', $model->{cache}{blocks}, 'status: not all');
is($model->{restarts}, 0, 'status: restarts');
is($model->{context}, 2048, 'status: context');
is($model->{pid}, $server->engine_pid, 'status: pid');
$held->close;
ok(idle($server), 'idle');
is(metric($server, 'moe_kv_cache_usage_perc'), 0, 'no cache in use');

# What the workers count outlives a reload and the engine; the engine's own counts end with it.
$before = counters();
cmp_ok($before->{generation_tokens_total}, '>', 0, 'there are counts');
$server->reload;
ok(wait_until(5, sub { metric($server, 'moe_engine_up') }), 'workers know the engine');
added_are($before, {}, 'a reload changes no count');
$server->expect(qr/exited on signal 9/);
$held = hold($server, undef, uri => '/once/v1/completions');
kill 'KILL', $server->engine_pid;
ok(wait_until(10, sub { (metric($server, 'moe_engine_restarts_total') // 0) == 1
                        && $server->health == 200 }), 'the engine is killed and back');
is(collect($held)->{error}{code}, 'service_unavailable', 'a stream that is not resumed');
is(completion($server, long_body(10))->{status}, 200, 'it serves');
ok(wait_until(5, sub {
    $now = counters();
    return ($now->{generation_tokens_total} // 0) == 10
        && $now->{'http_requests_total 200'} == $before->{'http_requests_total 200'} + 2
        && $now->{streams_broken_total} == 1;
}), 'its counts are new, those of HTTP go on');

# Only GET and HEAD.
is(post($server, $_, '{}')->{status}, 405, "POST $_") for '/status', '/metrics', '/health';
is(get($server, '/health')->{json}{status}, 'ok', '/health');

finish();
