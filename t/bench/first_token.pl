#!/usr/bin/perl

# Time to first token from an idle engine, as a client sees it, and how much of it is not prefill.
#
#     make bench    or    perl -It/lib t/bench/first_token.pl [ROUNDS]
#
# A client with a kept connection sends a streaming completion and takes the time until the first
# event has arrived.  The engine's own histograms, read after each request, give the same request's
# prefill: time to first token less the time in the queue.  What is between the two is ours: HTTP,
# JSON, channel, scheduling, wake-ups, and the client itself.

use strict;
use warnings;

use Moe::Bench;
use Moe::Test;

my $rounds = shift @ARGV || 100;
my @lengths = (16, 64, 256);


# Seconds of prefill since the engine started.
sub prefill_seconds {
    my ($server) = @_;

    return metric($server, 'moe_time_to_first_token_seconds_sum')
           - metric($server, 'moe_request_queue_time_seconds_sum');
}


# One request: (seconds until the first event, seconds of prefill).
sub measure {
    my ($server, $client, $length) = @_;
    my $prompt = [map { 6 + int rand 2000 } 1 .. $length];
    my $before = prefill_seconds($server);
    my ($start, $first);

    $start = time;
    $client->send_request('POST', '/v1/completions',
        { model => 'demo', prompt => $prompt, max_tokens => 2, temperature => 0, stream => \1,
          ignore_eos => \1 });
    $client->read_head;
    $client->event;
    $first = time - $start;
    1 while defined $client->event;
    return ($first, prefill_seconds($server) - $before);
}

my $server = server(context => 512);
my $client = client($server);

print machine(), "\n";
printf "%8s %12s %12s %14s %14s\n", 'prompt', 'first token', 'prefill', 'difference', 'difference';
printf "%8s %12s %12s %14s %14s\n", 'tokens', 'median ms', 'median ms', 'median ms', '90 % ms';
for my $length (@lengths) {
    my (@first, @prefill, @difference);

    measure($server, $client, $length) for 1 .. 5;
    for (1 .. $rounds) {
        my ($first, $prefill) = map { $_ * 1000 } measure($server, $client, $length);
        push @first, $first;
        push @prefill, $prefill;
        push @difference, $first - $prefill;
    }
    printf "%8d %12.2f %12.2f %14.2f %14.2f\n", $length, quantile(0.5, @first),
        quantile(0.5, @prefill), quantile(0.5, @difference), quantile(0.9, @difference);
}
$client->close;
finish();
