#!/usr/bin/perl

# What a long prompt does to those who are reading their answers.
#
#     make bench    or    perl -It/lib t/bench/interference.pl [ROUNDS]
#
# 16 streams run; in every second stretch of time a prompt of 1,800 tokens arrives each second, too.
# The 99th percentile of the streams' inter-token latency may then be three times what it is without,
# and one step more.

use strict;
use warnings;

use Moe::Bench;
use Moe::Test;

my $rounds = shift @ARGV || 5;

use constant { STREAMS => 16, SECONDS => 8, WARM_UP => 1, LONG => 1800, STEP_MS => 50 };
my $server = server(workers => 1, model_block => 'step_time ' . STEP_MS . 'ms;');
my $greedy = '{"temperature":0,"ignore_eos":true}';
my $route = '/v1/completions';
my @common = ('--ids', '6-2000', '--body', $greedy, '--duration', SECONDS);


# Inter-token latencies of a stretch, and times to the first token of the long prompts, if any.
sub stretch {
    my ($with_prompts) = @_;
    my $streams = start_load($server, $route, @common, '--concurrency', STREAMS, '--length',
        '8-32', '--max-tokens', '300-1000', '--warm-up', WARM_UP);
    my $prompts = $with_prompts && start_load($server, $route, @common, '--rate', 1,
        '--arrivals', 'constant', '--length', LONG, '--max-tokens', 1);
    my $result = load_result($streams);

    return ($result->{itl_ms}, $prompts ? load_result($prompts)->{ttft_ms} : undef);
}

print machine(), "\n";
my %values;
for (1 .. $rounds) {
    my ($idle) = stretch(0);
    my ($busy, $first) = stretch(1);

    push @{$values{idle}}, $idle->{p99};
    push @{$values{busy}}, $busy->{p99};
    push @{$values{first}}, $first->{p50};
    printf "p99 between tokens: %6.2f ms idle, %6.2f ms with a long prompt each second (median"
        . " %.2f and %.2f); first token of these %.1f ms\n", $idle->{p99}, $busy->{p99},
        $idle->{p50}, $busy->{p50}, $first->{p50};
}
my %median = map { $_ => quantile(0.5, @{$values{$_}}) } keys %values;
my $most = 3 * $median{idle} + STEP_MS;
printf "medians: %.2f ms idle, %.2f ms with long prompts, may be %.2f ms\n",
    @median{qw(idle busy)}, $most;
finish();
