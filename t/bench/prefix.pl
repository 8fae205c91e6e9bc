#!/usr/bin/perl

# Time to first token of a long prompt, and of a second request that begins with it.
#
#     make bench    or    perl -It/lib t/bench/prefix.pl [ROUNDS]
#
# A client with a kept connection sends a streaming completion of 1,500 prompt tokens that no other
# one begins with, then one that has the same 1,500 and 12 more, and takes the time until the first
# event of each.  The engine has one thread; both go through nginx.

use strict;
use warnings;

use Moe::Test;

use constant { PREFIX => 1500, MORE => 12, TARGET => 0.1 };

my $rounds = shift @ARGV || 10;


sub prompt {
    my ($length) = @_;

    return map { 6 + int rand 2000 } 1 .. $length;
}


# Seconds until the first event, and the tokens that were found in the cache.
sub measure {
    my ($client, @prompt) = @_;
    my $start = time;
    my ($first, $usage);

    $client->send_request('POST', '/v1/completions',
        { model => 'demo', prompt => \@prompt, max_tokens => 2, temperature => 0, stream => \1,
          stream_options => { include_usage => \1 }, ignore_eos => \1 });
    $client->read_head;
    while (defined(my $event = $client->event)) {
        $first //= time - $start;
        $usage = json_decode($event)->{usage} // $usage if $event ne '[DONE]';
    }
    return ($first, $usage->{prompt_tokens_details}{cached_tokens});
}


sub median {
    my @values = sort { $a <=> $b } @_;

    return $values[$#values / 2];
}

my $server = server(threads => 1);
my $client = client($server);
my (@cold, @warm);

measure($client, 5, prompt(199));
for my $round (1 .. $rounds) {
    # Prompts that begin with the same token by chance would have that in common.
    my @prefix = (5 + $round, prompt(PREFIX - 1));
    my ($cold, $none) = measure($client, @prefix);
    my ($warm, $cached) = measure($client, @prefix, prompt(MORE));

    die "cold: $none cached tokens\n" if $none != 0;
    die "warm: $cached cached tokens\n" if $cached < PREFIX - 16;
    push @cold, 1000 * $cold;
    push @warm, 1000 * $warm;
}
printf "prefix of %d tokens: first request %.1f ms, second %.1f ms to the first token (medians),"
    . " ratio %.3f (at most %.2f)\n", PREFIX, median(@cold), median(@warm),
    median(@warm) / median(@cold), TARGET;
$client->close;
finish();
