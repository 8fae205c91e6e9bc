#!/usr/bin/perl

# What a step costs two ranks of one thread each, against one rank of two threads.
#
#     make bench    or    perl -It/lib t/bench/ranks.pl [ROUNDS] [--all] [OPTION …]
#
# `moe-engine bench`, 32 sequences at a time: in each round once with one rank and once in each
# other way, the order turned round every other time; a round's ratio is what its neighbours in time
# say, so it moves less than the times do.  The aim: a median of at most 1.05.  With --all also for
# tensor parallelism and each form of exchange and of overlap.  OPTIONs go to all.

use strict;
use warnings;

use Moe::Bench;
use Moe::Test;

use constant { BATCH => 32, PROMPT => 128, TOKENS => 200 };

my $rounds = @ARGV && $ARGV[0] =~ /^\d+$/ ? shift @ARGV : 21;
my $all = @ARGV && $ARGV[0] eq '--all' && shift @ARGV;
my @ways = ([qw(--ranks 1)], [qw(--ranks 2)]);

if ($all) {
    push @ways, map { [qw(--ranks 2 --exchange), $_] } qw(bf16 int8 fp8);
    push @ways, map { [qw(--ranks 2 --overlap), $_] } qw(off two_batch);
    push @ways, [qw(--ranks 2 --tensor-parallel 2)];
}

sub step_us {
    my $result = json_decode(engine_command('bench', $Moe::Server::MODEL, '--json', '--batch', BATCH,
        '--prompt', PROMPT, '--gen', TOKENS, '--threads', 2, @{$_[0]}, @ARGV));

    return 1e6 * BATCH / $result->{results}[0]{decode_tokens_per_s};
}

my @times = map { [] } @ways;

print machine(), "\n";
for my $round (1 .. $rounds) {
    my @order = $round % 2 ? (0 .. $#ways) : reverse 0 .. $#ways;

    push @{$times[$_]}, step_us($ways[$_]) for @order;
}
for my $way (0 .. $#ways) {
    my @ratios = map { $times[$way][$_] / $times[0][$_] } 0 .. $rounds - 1;

    printf "%-36s %6.0f us a step, %.3f times that of one rank (quarters: %.3f, %.3f)\n",
        "@{$ways[$way]}", quantile(0.5, @{$times[$way]}), map { quantile($_, @ratios) }
        0.5, 0.25, 0.75;
}
