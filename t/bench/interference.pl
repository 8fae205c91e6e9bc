#!/usr/bin/perl

# What others do to one's requests.
#
#     make bench    or    perl -It/lib t/bench/interference.pl [ROUNDS]
#
# Streams and prompts: the time between two tokens of 16 streams, alone and while a prompt of 1,800
# tokens arrives every second.  The aim: the 99th percentile beside prompts is at most three times
# the one without, plus step_time.
#
# Two keys: the time to the first token of a prompt, asked for with one key after the other, alone
# and while another key keeps more requests open than the batch holds.  The aim: at most twice.
#
# The legs of a round follow each other on one server with one engine thread.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);

use Moe::Test;

my $rounds = shift @ARGV || 3;
my $step_time = 50;
my $server = server(start => 0, model_block => "step_time ${step_time}ms;",
    server => 'location /keys/ { moe_pass demo; moe_api_keys %PREFIX%/keys; }');
my @body = ('--model', 'demo', '--ids', '6-2000', '--body', '{"temperature":0,"ignore_eos":true}');


# Runs build/load to its end: its results.
sub load {
    my ($uri, @options) = @_;

    open my $output, '-|', "$Moe::Server::BUILD/load", @body, '--json', @options,
        "http://127.0.0.1:$server->{port}$uri" or die "load: $!\n";
    local $/;
    my $results = json_decode(<$output> // '');
    die "load: requests failed\n" if $results->{failed};
    return $results;
}


# The same beside another one, which is there from before the first to after the last request.
sub load_beside {
    my ($other, @arguments) = @_;
    my $pid = fork() // die "fork: $!\n";
    my $results;

    if ($pid == 0) {
        my ($uri, @options) = @$other;
        open STDOUT, '>', '/dev/null';
        exec "$Moe::Server::BUILD/load", @body, @options,
            "http://127.0.0.1:$server->{port}$uri" or die "load: $!\n";
    }
    wait_until(20, sub { running($server) > 0 });
    sleep(1);
    $results = load(@arguments);
    kill 'TERM', $pid;
    waitpid $pid, 0;
    idle($server, 60);
    return $results;
}


sub streams_and_prompts {
    my @streams = ('/v1/completions', '--concurrency', 16, '--requests', 16, '--length', 16,
                   '--max-tokens', 1200);
    my @prompts = ('/v1/completions', '--rate', 1, '--arrivals', 'constant', '--length', 1800,
                   '--max-tokens', 1, '--duration', 600);

    print "16 streams, ms between tokens; a prompt of 1800 tokens every second\n";
    printf "%10s %10s %10s %10s %8s\n", 'alone 50 %', '99 %', 'beside 50 %', '99 %', 'limit';
    for (1 .. $rounds) {
        my ($alone, $beside) = map { $_->{itl_ms} } load(@streams),
            load_beside(\@prompts, @streams);

        printf "%10.2f %10.2f %10.2f %10.2f %8.2f\n", @$alone{qw(p50 p99)}, @$beside{qw(p50 p99)},
            3 * $alone->{p99} + $step_time;
    }
    return;
}


sub two_keys {
    my ($length) = @_;
    my @one = ('/keys/v1/completions', '--key', 'sk-one', '--concurrency', 100, '--length',
               '100-1500', '--max-tokens', '10-200', '--duration', 600);
    my @other = ('/keys/v1/completions', '--key', 'sk-other', '--requests', 10, '--length', $length,
                 '--max-tokens', 8);

    for (1 .. $rounds) {
        my ($alone, $beside) = map { $_->{ttft_ms}{p50} } load(@other), load_beside(\@one, @other);

        printf "%8d %10.1f %10.1f %8.2f\n", $length, $alone, $beside, $beside / $alone;
    }
    return;
}

$server->write_file('keys', join '', map { "$_:" . sha256_hex("sk-$_") . "\n" } 'one', 'other');
$server->start;
load('/v1/completions', '--requests', 4, '--length', 200, '--max-tokens', 50);
streams_and_prompts();
print "\nTwo keys, one flooding: the other's time to the first token, median of 10, ms\n";
printf "%8s %10s %10s %8s\n", 'prompt', 'alone', 'flooded', 'ratio';
two_keys($_) for 1500, 300;
finish();
