#!/usr/bin/perl

# Two keys, one of which floods the server: what the other has of it.
#
#     make bench    or    perl -It/lib t/bench/fair.pl [ROUNDS]
#
# The time to the first token of a long and of a shorter prompt, asked for with one key after the
# other, alone and while another key keeps more requests open than the batch holds.  The aim: at
# most twice.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Moe::Bench;
use Moe::Test;

my $rounds = shift @ARGV || 5;

use constant { FLOOD => 100, REQUESTS => 8 };
my $server = server(workers => 1, start => 0,
    server => 'location /keys/ { moe_pass demo; moe_api_keys %PREFIX%/keys; }');
my @common = ('/keys/v1/completions', '--ids', '6-2000', '--body',
    '{"temperature":0,"ignore_eos":true}');
my $seed = 0;       # each leg has prompts of its own: none is in the prefix cache


# The median time to the first token.
sub first_token {
    my ($length) = @_;

    return load_result(start_load($server, @common, '--seed', ++$seed, '--key', 'sk-other',
        '--requests', REQUESTS, '--length', $length, '--max-tokens', 8))->{ttft_ms}{p50};
}


# The same beside the flood.
sub flooded {
    my ($length) = @_;
    my $flood = start_load($server, @common, '--seed', ++$seed, '--key', 'sk-one', '--concurrency',
        FLOOD, '--length', '100-1500', '--max-tokens', '10-200', '--duration', 600);

    wait_until(60, sub { waiting($server) > 0 }) or die "there is no flood\n";
    my $time = first_token($length);
    stop_load($flood);
    idle($server, 60);
    return $time;
}

$server->write_file('keys', join '', map { "$_:" . sha256_hex("sk-$_") . "\n" } 'one', 'other');
$server->start;
print machine(), "\n";
printf "%8s %12s %12s\n", 'prompt', 'alone, ms', 'flooded, ms';
for my $length (1500, 300) {
    my (@alone, @flooded);

    for (1 .. $rounds) {
        push @alone, first_token($length);
        push @flooded, flooded($length);
        printf "%8d %12.1f %12.1f\n", $length, $alone[-1], $flooded[-1];
    }
    printf "%d tokens, medians: %.1f ms alone, %.1f ms flooded: %.2f times\n", $length,
        quantile(0.5, @alone), quantile(0.5, @flooded),
        quantile(0.5, @flooded) / quantile(0.5, @alone);
}
finish();
