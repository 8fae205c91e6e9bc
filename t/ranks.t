# Ranks: the same answers as one rank gives; a rank that stalls or leaves ends the engine, and nginx
# answers all the same: resumed answers are whole, others are an error; nothing hangs.

use lib 't/lib';
use Moe::Test;

my @prompts = ('Syntax: gzip', 'Directive: proxy_pass', 'Context: http', 'a', 'Syntax: listen');
my @requests = map {
    long_body(44 + $_, prompt => $prompts[$_ % 5], $_ % 2 ? (temperature => 1, seed => $_) : ())
} 0 .. 9;
my $SECONDS = $Moe::Server::SLOW;

# What the log says of an engine that ends because a rank is lost; it waits for no thread.
my @loss = (qr/\[alert\].*a rank is lost/, qr/ThreadSanitizer: (?:thread leak|reported)/);

sub answers {
    my ($server) = @_;

    return [map { essence($_) } parallel($server, map { ['/v1/completions', $_] } @requests)];
}

# A command's exit status and all it prints.
sub run_command {
    my ($fault, @arguments) = @_;
    local $ENV{MOE_FAULT} = $fault;
    my $pid = open(my $out, '-|') // die "fork: $!";

    if ($pid == 0) {
        open STDERR, '>&', \*STDOUT;
        exec "$Moe::Server::BUILD/moe-engine", @arguments or POSIX::_exit(127);
    }
    my $text = join '', <$out>;
    close $out;
    return ($? >> 8, $text);
}

my $one = server(threads => 2);
my $expected = answers($one);
my @texts = map { collect_all($one, '/v1/completions', $_)->{text} } @requests;
is(scalar(grep { length } @texts), 10, 'an only rank answers');
is(metric($one, 'moe_exchange_dispatch_bytes_total'), 0, 'and sends nothing');

# As many as there are threads, so that a sequence's group is one of several.
for my $world ([2, 1], [4, 1], [4, 2]) {
    my ($ranks, $parts) = @$world;
    my $server = server(threads => $ranks, model_block =>
                        "ranks $ranks; tensor_parallel $parts; batch_sequences 8;");

    is_deeply(answers($server), $expected, "$ranks ranks, $parts to a group: the same answers, $_")
        for 'new', 'again';
    like($server->log_text, qr/, $ranks ranks, context/, 'the log says how many there are');
    is(metric($server, 'moe_num_requests_running'), 0, 'nothing is left');
    cmp_ok(metric($server, "moe_exchange_${_}_bytes_total"), '>', 0, "bytes between ranks: $_")
        for qw(dispatch list return);
    cmp_ok(metric($server, 'moe_prefix_cache_hits_total'), '>', 0, 'prefixes are found again')
        if $ranks == 2;
}

# Experts move between ranks while answers are computed.
{
    my $server = server(threads => 4, model_block => 'ranks 4; redundant_experts 4;');

    ok(wait_until(60, sub {
        is_deeply(answers($server), $expected, 'redundant experts: the same answers');
        return metric($server, 'moe_expert_placements_total') > 0;
    }), 'layers are placed anew');
    is_deeply(answers($server), $expected, 'the same answers after that');
    cmp_ok(metric($server, 'moe_expert_rows_most_total'), '>=',
           metric($server, 'moe_expert_rows_total'), 'the busiest rank has no less than the mean');
    cmp_ok(metric($server, 'moe_expert_rows_total'), '>', 0, 'which is more than nothing');
    my $experts = get($server, '/status')->{json}{models}[0]{experts};
    is($experts->{rows}, metric($server, 'moe_expert_rows_total'), 'moe_status has it, too');
    cmp_ok($experts->{placements}, '>', 0, 'and the placements');
}

# Two CPUs as two NUMA nodes: each rank's threads stay on its own, and the others where they were.
sub affinities {
    my ($pid) = @_;
    my %lists;

    for my $file (glob "/proc/$pid/task/*/status") {
        $lists{$1}++ if file_content($file) =~ /^Cpus_allowed_list:\t(\S+)/m;
    }
    return \%lists;
}

SKIP: {
    my ($own) = keys %{affinities($$)};

    skip 'there are no CPUs 0 and 1', 3 unless $own =~ /^0-\d+$/;
    local @ENV{'HWLOC_SYNTHETIC', 'HWLOC_THISSYSTEM'} = ('numa:2 pu:1', 1);
    my $server = server(main => 'env HWLOC_SYNTHETIC; env HWLOC_THISSYSTEM;', threads => 4,
                        model_block => 'ranks 2;');
    my $lists = affinities($server->engine_pid);

    is_deeply([@$lists{0, 1}], [2, 2], 'two threads on each node');
    like($server->log_text, qr/, 2 ranks on 2 NUMA nodes, context/, 'the log says so');
    is_deeply(answers($server), $expected, 'the same answers');
}

# A rank is lost in the middle of answers; the next engine has the same fault, but comes to their
# end before that.
for my $how ('exit', 'stall') {
    local $ENV{MOE_FAULT} = "rank1:step40:$how";
    my $server = server(main => 'env MOE_FAULT;', threads => 2, location => 'moe_resume 3;',
        model_block => 'ranks 2; peer_timeout ' . 1000 * $SECONDS . 'ms;');
    my @streams = map { stream($server, '/v1/completions', $_) } @requests[0 .. 4];
    my @plain = map { send_body($server, $_) } @requests[5 .. 9];

    for my $i (0 .. 4) {
        my $result = collect($streams[$i]);

        is($result->{error}, undef, "$how: stream $i has no error");
        ok($result->{complete} && $result->{done}, 'it is complete');
        is($result->{text}, $texts[$i], 'and its text the same');
    }
    is(essence($plain[$_]->read_answer), $expected->[5 + $_], "$how: in one piece, $_") for 0 .. 4;
    $_->close for @streams, @plain;
    cmp_ok(metric($server, 'moe_engine_restarts_total'), '>=', 1, 'the engine was started again');
    like($server->log_text, $how eq 'exit' ? qr/\[alert\].*: a rank is lost: .*rank 1 has left/
                                           : qr/\[alert\].*: a rank is lost: .*rank 1 did not come/,
         'the log says why');
    $server->expect(@loss);
}

# Where nothing is resumed.
{
    local $ENV{MOE_FAULT} = 'rank0:step20:exit';
    my $server = server(main => 'env MOE_FAULT;', threads => 2, location => 'moe_resume 0;',
                        model_block => 'ranks 2;');
    my $stream = stream($server, '/v1/completions', long_body(400));
    my $plain = send_body($server, long_body(400));
    my $result = collect($stream);
    my $answer = $plain->read_answer;

    isnt($result->{error}, undef, 'a stream ends with an error event');
    ok($result->{complete} && $result->{done}, 'and [DONE]');
    is($answer->{status}, 503, 'an answer in one piece is a 503');
    like($answer->{headers}{'retry-after'}, qr/^\d+$/, 'with Retry-After');
    $_->close for $stream, $plain;
    ok($server->wait_ready(10), 'the next engine serves');
    $server->expect(@loss);
}

# Commands.
my @run = ('run', $Moe::Server::MODEL, '-p', 'Syntax: gzip', '-n', 30,
           '--threads', 2, '--ranks', 2);
for my $case (
    ['', [@run], 0, qr/finish: (?:stop|length)/],
    ['rank1:step9:exit', [@run], 1, qr/moe-engine: step 9: fault: rank 1 has left$/m],
    ['rank0:step1:exit', ['bench', $Moe::Server::MODEL, '--threads', 2, '--ranks', 2], 1,
     qr/^moe-engine: step 1: fault: rank 0 has left$/m],
    ['rank1:step1:exit',
     ['logits', $Moe::Server::MODEL, '--tokens', '1,2', '--threads', 2, '--ranks', 2], 1,
     qr/^moe-engine: step 1: fault: rank 1 has left$/m],
    ['rank2:step9:exit', [@run], 1, qr/^moe-engine: MOE_FAULT: there is no rank 2 among 2$/m],
    ['rank0:step1:exit', [@run[0 .. 6], 2], 1, qr{^moe-engine: MOE_FAULT needs several ranks$}m],
    ['sometimes', [@run], 1, qr/^moe-engine: MOE_FAULT: "sometimes" is not/m],
    ['', [@run[0 .. 6], 2, '--ranks', 3], 1,
     qr/^moe-engine: 3 ranks need a thread each: threads is 2$/m],
    ['', [@run, '--tensor-parallel', 2], 0, qr/finish: (?:stop|length)/],
    ['rank1:step9:exit', [@run, '--tensor-parallel', 2], 1,
     qr/moe-engine: step 9: fault: rank 1 has left$/m],
    ['', [@run, '--tensor-parallel', 3], 1,
     qr/^moe-engine: tensor_parallel 3 does not divide 2 ranks$/m],
    ['', [@run[0 .. 6], 16, '--ranks', 16, '--tensor-parallel', 16], 1,
     qr/^moe-engine: tensor_parallel 16: layer 0 has \d+ heads to be divided$/m],
    ['', [@run, '--redundant-experts', 65536], 1,
     qr/^moe-engine: redundant_experts 65536: each of 2 ranks would have 32776 slots for 16 experts$/m],
    ['', [@run[0 .. 6], 2, '--ranks', 0], 1, qr/unknown option or wrong value: "--ranks"/],
) {
    my ($fault, $arguments, $status, $message) = @$case;
    my ($got, $text) = run_command($fault, @$arguments);

    is($got, $status, "MOE_FAULT=$fault @$arguments[0, -2, -1]: exit status");
    like($text, $message, 'and what it says');
}

finish();
