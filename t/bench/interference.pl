#!/usr/bin/perl

# What long prompts do to those who are reading their answers.
#
#     make bench    or    perl -It/lib t/bench/interference.pl [ROUNDS]
#
# 16 streams run from beginning to end, alone and while a prompt of 1,800 tokens arrives each
# second.  The aim: the 99th percentile of the time between two tokens is at most three times what
# it is without the prompts, plus step_time.

use strict;
use warnings;

use Moe::Bench;
use Moe::Test;

my $rounds = shift @ARGV || 5;

use constant { STREAMS => 16, TOKENS => 1000, LONG => 1800, STEP_MS => 50 };
my $server = server(workers => 1, model_block => 'step_time ' . STEP_MS . 'ms;');
my @common = ('/v1/completions', '--ids', '6-2000', '--body',
    '{"temperature":0,"ignore_eos":true}');
my $seed = 0;       # each leg has prompts of its own: none is in the prefix cache


# Times between tokens.
sub streams {
    return load_result(start_load($server, @common, '--seed', ++$seed, '--concurrency', STREAMS,
        '--requests', STREAMS, '--length', 16, '--max-tokens', TOKENS))->{itl_ms};
}


# The same beside prompts, and these prompts' times to the first token.
sub streams_and_prompts {
    my $prompts = start_load($server, @common, '--seed', ++$seed, '--rate', 1, '--arrivals',
        'constant', '--length', LONG, '--max-tokens', 1, '--duration', 600);
    my $times = streams();

    return ($times, stop_load($prompts)->{ttft_ms});
}

print machine(), "\n";
printf "ms between tokens of %d streams; a prompt of %d tokens each second\n", STREAMS, LONG;
printf "%12s %8s %12s %8s %8s %12s\n", 'alone 50 %', '99 %', 'beside 50 %', '99 %', 'limit',
    'first token';
my %values;
for (1 .. $rounds) {
    my $alone = streams();
    my ($beside, $first) = streams_and_prompts();

    push @{$values{alone}}, $alone->{p99};
    push @{$values{beside}}, $beside->{p99};
    printf "%12.2f %8.2f %12.2f %8.2f %8.2f %12.1f\n", @$alone{qw(p50 p99)},
        @$beside{qw(p50 p99)}, 3 * $alone->{p99} + STEP_MS, $first->{p50};
}
my %median = map { $_ => quantile(0.5, @{$values{$_}}) } keys %values;
printf "median of the 99 %%: alone %.2f, beside %.2f, limit %.2f\n", @median{qw(alone beside)},
    3 * $median{alone} + STEP_MS;
finish();
