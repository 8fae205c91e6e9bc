#!/usr/bin/perl

# Two keys, one of which floods the server: what the other has of it.
#
#     make bench    or    perl -It/lib t/bench/fair.pl [ROUNDS]
#
# One key asks once a second with a prompt of 1,000 tokens; in every second stretch of time another
# one has 64 requests of some hundred tokens running or waiting all the time.  The first one's time to
# first token should at most double.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Moe::Bench;
use Moe::Test;

my $rounds = shift @ARGV || 5;

use constant { SECONDS => 8, WARM_UP => 1, PROMPT => 1000, FLOOD => 64 };
my $server = server(workers => 1, start => 0, model_block => 'batch_sequences 32;',
    server => 'location /keyed/ { moe_pass demo; moe_api_keys keys; }');
$server->write_file('keys', join '', map { "$_:" . sha256_hex("key of $_") . "\n" } qw(one other));
$server->start;
my $greedy = '{"temperature":0,"ignore_eos":true}';
my @common = ('--ids', '6-2000', '--body', $greedy, '--duration', SECONDS);
my $route = '/keyed/v1/completions';


# Times to the first token of the one that asks now and then.
sub stretch {
    my ($flooded) = @_;
    my $flood = $flooded && start_load($server, $route, @common, '--key', 'key of other',
        '--concurrency', FLOOD, '--length', '100-400', '--max-tokens', '32-64');
    my $asking = start_load($server, $route, @common, '--key', 'key of one', '--rate', 1,
        '--arrivals', 'constant', '--length', PROMPT, '--max-tokens', 16, '--warm-up', WARM_UP);
    my $result = load_result($asking);

    die "requests failed\n" if $result->{failed};
    return ($result->{ttft_ms}{p50}, $flood ? load_result($flood)->{tokens_per_s} : undef);
}

print machine(), "\n";
my %values;
for (1 .. $rounds) {
    my ($alone) = stretch(0);
    my ($flooded, $rate) = stretch(1);

    push @{$values{alone}}, $alone;
    push @{$values{flooded}}, $flooded;
    printf "median time to first token: %6.1f ms alone, %6.1f ms while another key has %.0f"
        . " tokens/s\n", $alone, $flooded, $rate;
}
my %median = map { $_ => quantile(0.5, @{$values{$_}}) } keys %values;
printf "medians: %.1f ms alone, %.1f ms flooded: %.2f times\n", @median{qw(alone flooded)},
    $median{flooded} / $median{alone};
finish();
