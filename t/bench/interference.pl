#!/usr/bin/perl

# What long prompts do to running streams: the 99th percentile of the time between two tokens of 16
# streams, alone and while a prompt of 1,800 tokens arrives every second.
#
#     make bench    or    perl -It/lib t/bench/interference.pl [ROUNDS]
#
# Both legs run the same streams on the same server, in turns.  The aim: with prompts at most three
# times what it is without, plus step_time.

use strict;
use warnings;

use IO::Select;
use List::Util qw(sum max);

use Moe::Test;

my $rounds = shift @ARGV || 3;
my $STREAMS = 16;
my $TOKENS = 1200;
my $PROMPT = 1800;
my $STEP_TIME_MS = 50;


sub quantile {
    my ($share, $values) = @_;
    my @sorted = sort { $a <=> $b } @$values;

    return $sorted[int($share * $#sorted + 0.5)];
}


sub send_stream {
    my ($server, $prompt, $tokens) = @_;
    my $client = client($server);

    $client->send_request('POST', '/v1/completions',
        { model => 'demo', prompt => $prompt, max_tokens => $tokens, temperature => 0,
          stream => \1, ignore_eos => \1 });
    return { client => $client, last => 0, begin => time };
}


sub random_prompt {
    my ($length) = @_;

    return [map { 6 + int rand 2000 } 1 .. $length];
}


# Runs the streams to their end: gaps between their tokens in ms, and times to the first token of
# the prompts that came meanwhile.
sub run_leg {
    my ($server, $with_prompts) = @_;
    my (@gaps, @first);
    my @streams = map { send_stream($server, random_prompt(16), $TOKENS) } 1 .. $STREAMS;
    my %by_socket = map { fileno($_->{client}{socket}) => $_ } @streams;
    my $select = IO::Select->new(map { $_->{client}{socket} } @streams);
    my $left = $STREAMS;
    my $due = time + 1;

    while ($left > 0) {
        if ($with_prompts && time >= $due) {
            my $long = send_stream($server, random_prompt($PROMPT), 1);
            $long->{is_prompt} = 1;
            $by_socket{fileno $long->{client}{socket}} = $long;
            $select->add($long->{client}{socket});
            $due += 1;
        }
        for my $socket ($select->can_read($with_prompts ? max(0, $due - time) : undef)) {
            my $stream = $by_socket{fileno $socket};
            my $n = sysread $socket, my $data, 65536;
            my $now = time;
            next unless defined $n;
            if ($stream->{is_prompt}) {
                push @first, 1000 * ($now - $stream->{begin}) if $data =~ /"text"/;
            } elsif ($data =~ /"text"/) {
                push @gaps, 1000 * ($now - $stream->{last}) if $stream->{last};
                $stream->{last} = $now;
            }
            if ($n == 0 || $data =~ /\[DONE\]/) {
                $select->remove($socket);
                $left-- unless $stream->{is_prompt};
                delete $by_socket{fileno $socket};
                $stream->{client}->close;
            }
        }
    }
    $_->{client}->close for values %by_socket;
    idle($server, 30);
    return (\@gaps, \@first);
}


my $server = server(context => 2048, model_block => "step_time ${STEP_TIME_MS}ms;");
my $missed = 0;

run_leg($server, 0);
printf "%8s %10s %10s %12s %12s %14s %8s\n", 'round', 'alone 50 %', 'alone 99 %', 'prompts 50 %',
    'prompts 99 %', 'prompts, first', 'ratio';
for my $round (1 .. $rounds) {
    my ($alone) = run_leg($server, 0);
    my ($beside, $first) = run_leg($server, 1);
    my ($idle, $busy) = (quantile(0.99, $alone), quantile(0.99, $beside));

    printf "%8d %7.2f ms %7.2f ms %9.2f ms %9.2f ms %11.1f ms %8.2f\n", $round,
        quantile(0.5, $alone), $idle, quantile(0.5, $beside), $busy,
        @$first ? sum(@$first) / @$first : 0, ($busy - $STEP_TIME_MS) / $idle;
    $missed += $busy > 3 * $idle + $STEP_TIME_MS;
}
printf "99 %% beside prompts within 3 x alone + %d ms: %d of %d rounds\n", $STEP_TIME_MS,
    $rounds - $missed, $rounds;
finish();
