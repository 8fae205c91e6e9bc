# The prefix cache: what comes again is not computed again, is counted exactly, in answers, streams,
# logs and metrics, and changes no byte of an answer.

use lib 't/lib';
use Moe::Test;

use constant BLOCK => 16;

my $server = server(http => 'log_format cached "$moe_prompt_tokens $moe_cached_tokens";'
    . ' access_log %PREFIX%/cached.log cached;');
my $off = server(model_block => 'prefix_cache off;');
my $seed = 1;

# Token ids that no other call has begun with.
sub prompt {
    my ($length) = @_;

    return [map { $seed = ($seed * 1103515245 + 12345) % 2147483648; 6 + ($seed >> 8) % 2000 }
            1 .. $length];
}

sub body {
    my ($prompt, %members) = @_;

    return { prompt => $prompt, max_tokens => 24, temperature => 0, ignore_eos => \1, logprobs => 2,
             %members };
}

sub cached {
    my ($answer) = @_;

    return $answer->{json}{usage}{prompt_tokens_details}{cached_tokens};
}

sub blocks {
    my ($tokens) = @_;

    return $tokens - $tokens % BLOCK;
}

# Cold, warm, longer, shorter; the same answers as without a cache.
my $long = prompt(500);
for my $case (
    [$long, 0, 'cold'],
    [$long, 499, 'the same again'],
    [[@$long, @{prompt(40)}], 500, 'with more behind it'],
    [[@$long[0 .. 99]], 99, 'its beginning'],
    [[@$long[0 .. 95]], 95, 'its beginning, whole blocks'],
    [[@$long[0 .. 199], @{prompt(300)}], 200, 'its beginning, then something else'],
    [[6, @$long], 0, 'something else before it'],
    [[$long->[0]], 0, 'one token'],
) {
    my ($prompt, $expected, $name) = @$case;
    my $answer = completion($server, body($prompt));

    is(cached($answer), $expected, "$name: cached_tokens");
    is(essence($answer), essence(completion($off, body($prompt))), "$name: the same answer");
}

# Streams have the number, too.
my $stream = body(prompt(100), stream_options => { include_usage => \1 });
for my $expected (0, 99) {
    my $usage = collect_all($server, '/v1/completions', $stream)->{usage};
    is($usage->{prompt_tokens_details}{cached_tokens}, $expected, "streamed: $expected");
}

# A conversation finds its earlier turns, the answer included.
my @messages = ({ role => 'user', content => 'What is the default of keepalive_timeout?' });
my $first = chat($server, \@messages, { max_tokens => 60 });
push @messages, { role => 'assistant', content => $first->{json}{choices}[0]{message}{content} },
    { role => 'user', content => 'And of client_max_body_size?' };
my $second = chat($server, \@messages);
cmp_ok(cached($second), '>=', blocks($first->{json}{usage}{total_tokens} - BLOCK),
       'the second turn finds the first');
is(essence($second), essence(chat($off, \@messages)), 'the second turn: the same answer');

# The choices of a cold prompt: none of it was cached, and it is computed once.
my $three = completion($server, body(prompt(300), n => 3, temperature => 1, seed => 5));
is(cached($three), 0, 'n 3, cold: cached_tokens');
is(cached(completion($server, body(prompt(40), best_of => 3, temperature => 1))), 0,
   'best_of 3, cold: cached_tokens');
my $many = prompt(200);
my @answers = parallel($server, map { ['/v1/completions', body($many)] } 1 .. 6);
is(scalar keys %{{ map { essence($_) => 1 } @answers }}, 1, 'six at once: the same answer');
is(scalar(grep { cached($_) == 0 } @answers), 1, 'six at once: one computes the prompt');
is(scalar(grep { cached($_) >= blocks(200) } @answers), 5, 'six at once: five find it');

# All rows of the prompt are wanted: nothing is taken from the cache.
for my $members ({ prompt_logprobs => 1 }, { echo => \1, logprobs => 1 }) {
    my $answer = completion($server, body($long, %$members));
    my ($name) = keys %$members;
    is(cached($answer), 0, "$name: cached_tokens");
    is(essence($answer), essence(completion($off, body($long, %$members))),
       "$name: the same answer");
}

# Metrics and logs count the same.
my %before = map { $_ => metric($server, "moe_prefix_cache_${_}_total") } qw(queries hits);
is(cached(completion($server, body($long))), 499, 'once more');
is(metric($server, 'moe_prefix_cache_queries_total'), $before{queries} + 500, 'queries');
is(metric($server, 'moe_prefix_cache_hits_total'), $before{hits} + 499, 'hits');
ok(wait_until(2, sub { $server->log_text('cached.log') =~ /^500 499$/m }), 'variables');
is(metric($off, 'moe_prefix_cache_hits_total'), 0, 'off: no hits');
is(cached(completion($off, body($long))), 0, 'off: cached_tokens');

# The same stream given up again and again leaves nothing in use.
for my $i (1 .. 20) {
    my $client = hold($server, long_body(1500, prompt => $long));
    $i % 2 ? $client->close : $client->abort;
}
ok(idle($server, 5), 'after twenty aborted streams');
is(metric($server, 'moe_kv_cache_usage_perc') + 0, 0, 'no cache is in use');
is(cached(completion($server, body($long))), 499, 'and the prefix is still found');

# A cache far too small for all at once: evictions and sequences put back change nothing.
my $tight = server(context => 512, model_block => 'kv_cache 1m; batch_tokens 64;');
my $common = prompt(100);
my @bodies = map { body([@$common[0 .. 20 * ($_ % 5)], @{prompt(20 + $_ * 5)}],
                        max_tokens => 60 + $_ * 7 % 60, temperature => $_ % 2, seed => $_) } 1 .. 16;
my @alone = map { essence(completion($off, $_)) } @bodies;
for my $round (1 .. 3) {
    my @together = parallel($tight, map { ['/v1/completions', $_] } @bodies);
    is_deeply([map { essence($_) } @together], \@alone, "a small cache, round $round");
}
cmp_ok(metric($tight, 'moe_num_preemptions_total'), '>', 0, 'a small cache: sequences were put back');
cmp_ok(metric($tight, 'moe_prefix_cache_hits_total'), '>', 0, 'a small cache: prefixes were found');

finish();
