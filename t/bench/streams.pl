#!/usr/bin/perl

# Tokens per second through nginx beside those of the engine alone.
#
#     make bench    or    perl -It/lib t/bench/streams.pl [ROUNDS [WORKERS]]
#
# Three measurements take turns, so that what else the machine does meets all of them: `moe-engine
# bench --batch 64`, 64 streams through nginx, 256 streams through nginx.  All streams of one begin
# together and have as many tokens; the engine has one thread.  Rates are all generated tokens over
# the time from the first request to the last token; ratios are those within a round, their median.
# The aims: 64 streams reach 85 % of the engine alone, and 256 streams 90 % of 64.  What a token
# costs the workers, the engine and the load generator in CPU time is said, too.

use strict;
use warnings;

use Moe::Bench;
use Moe::Load;
use Moe::Test;

my $rounds = shift @ARGV || 5;
my $workers = shift @ARGV || 1;

use constant { PROMPT => 16, FEW => 64, MANY => 256 };
my %tokens = (FEW, 256, MANY, 128);
my $server = server(workers => $workers, model_block => 'batch_sequences 256; queue 256;');
my %rates;
my %cpu;


# CPU time of the commands that have ended.
sub children_seconds {
    my (undef, undef, $user, $system) = times;

    return $user + $system;
}


sub alone {
    my ($batch) = @_;
    my $before = children_seconds();
    my $text = engine_command('bench', $Moe::Server::MODEL, '--prompt', PROMPT, '--gen',
        $tokens{$batch}, '--batch', $batch, '--threads', 1, '--json');

    push @{$cpu{alone}}, 1e6 * (children_seconds() - $before) / $batch / $tokens{$batch};
    return json_decode($text)->{results}[0]{overall_tokens_per_s};
}


sub through_nginx {
    my ($streams) = @_;
    my %pids = (workers => [$server->worker_pids], engine => [$server->engine_pid]);
    my %before = map { $_ => cpu_seconds(@{$pids{$_}}) } keys %pids;
    my $result = load_result(start_load($server, '/v1/completions', '--concurrency', $streams,
        '--requests', $streams, '--length', PROMPT, '--ids', '6-2000', '--max-tokens',
        $tokens{$streams}, '--body', '{"temperature":0,"ignore_eos":true}'));

    for my $who (keys %pids) {
        push @{$cpu{$streams}{$who}},
            1e6 * (cpu_seconds(@{$pids{$who}}) - $before{$who}) / $result->{completion_tokens};
    }
    push @{$cpu{$streams}{load}}, 1e6 * $result->{cpu_s} / $result->{completion_tokens};
    return $result->{tokens_per_s};
}

# The median of the rounds' ratios, in per cent.
sub ratio {
    my ($of, $to) = @_;

    return 100 * quantile(0.5, map { $rates{$of}[$_] / $rates{$to}[$_] } 0 .. $rounds - 1);
}

print machine(), "\n";
through_nginx(FEW);
for (1 .. $rounds) {
    push @{$rates{alone}}, alone(FEW);
    push @{$rates{FEW()}}, through_nginx(FEW);
    push @{$rates{MANY()}}, through_nginx(MANY);
    printf "%10.0f alone %10.0f with %d streams %10.0f with %d\n",
        (map { $rates{$_}[-1] } 'alone', FEW), FEW, $rates{MANY()}[-1], MANY;
}
my %median = map { $_ => quantile(0.5, @{$rates{$_}}) } keys %rates;
printf "medians: alone %.0f tokens/s; %d streams %.0f, %.0f %% of it; %d streams %.0f, %.0f %% of"
    . " those\n", $median{alone}, FEW, $median{FEW()}, ratio(FEW, 'alone'), MANY, $median{MANY()},
    ratio(MANY, FEW);
printf "CPU of a token alone: engine %.2f us\n", quantile(0.5, @{$cpu{alone}});
for my $streams (FEW, MANY) {
    printf "CPU of a token, %3d streams: %s\n", $streams, join ', ',
        map { sprintf '%s %.2f us', $_, quantile(0.5, @{$cpu{$streams}{$_}}) }
        qw(workers engine load);
}
finish();
