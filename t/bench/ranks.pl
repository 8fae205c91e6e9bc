#!/usr/bin/perl

# What a step costs two ranks of one thread each, against one rank of two threads.
#
#     make bench    or    perl -It/lib t/bench/ranks.pl [ROUNDS] [OPTION …]
#
# `moe-engine bench`, 32 sequences at a time, in turn with one rank and with two; medians of the
# time of a decode step.  Options go to both.  The aim: at most 5 % more.

use strict;
use warnings;

use Moe::Bench;
use Moe::Test;

use constant { BATCH => 32, PROMPT => 128, TOKENS => 200 };

my $rounds = @ARGV && $ARGV[0] =~ /^\d+$/ ? shift @ARGV : 9;
my %steps = (1 => [], 2 => []);

print machine(), "\n";
for (1 .. $rounds) {
    for my $ranks (sort keys %steps) {
        my $result = json_decode(engine_command('bench', $Moe::Server::MODEL, '--json', '--batch',
            BATCH, '--prompt', PROMPT, '--gen', TOKENS, '--threads', 2, '--ranks', $ranks, @ARGV));

        push @{$steps{$ranks}}, 1e6 * BATCH / $result->{results}[0]{decode_tokens_per_s};
    }
}
my %median = map { $_ => quantile(0.5, @{$steps{$_}}) } keys %steps;
printf "%d rank%s: a step takes %.0f us (%.0f to %.0f)\n", $_, $_ > 1 ? 's' : '', $median{$_},
    quantile(0, @{$steps{$_}}), quantile(1, @{$steps{$_}}) for sort keys %median;
printf "2 ranks cost %+.1f %%\n", 100 * ($median{2} / $median{1} - 1);
