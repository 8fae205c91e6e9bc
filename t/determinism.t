# The same request gives the same bytes alone and among others, with one thread and two, with small
# and large prefill chunks.

use lib 't/lib';
use Moe::Test;

# 32 different requests: greedy and sampled, with penalties, short and long prompts.
my @questions;
for my $line (split /\n/, file_content('t/golden/eval.tsv')) {
    my (undef, undef, $question) = split /\t/, $line;
    utf8::decode($question);
    push @questions, $question;
}
my @requests = map {
    my $i = $_;
    ['/v1/completions', {
        prompt => join(' ', @questions[$i * 15 + 1 .. $i * 15 + 1 + $i % 5 * 3]),
        max_tokens => 20 + $i % 7 * 5, ignore_eos => \1, logprobs => 3, seed => $i,
        temperature => $i % 3 ? 0.3 * ($i % 5) : 0,
        ($i % 4 == 1 ? (top_k => 20, top_p => 0.9) : ()),
        ($i % 4 == 2 ? (frequency_penalty => 0.5, repetition_penalty => 1.2) : ()),
        ($i % 4 == 3 ? (min_p => 0.05, presence_penalty => -0.5) : ()),
    }]
} 0 .. 31;

my $first = server(threads => 1, model_block => 'batch_tokens 512;');
my @alone = map { essence(post($first, $_->[0], { model => 'demo', %{$_->[1]} })) } @requests;
my $distinct = keys %{{ map { $_ => 1 } @alone }};
is($distinct, 32, 'the requests have different answers');
unlike(join('', @alone), qr/status \d/, 'all were answered');
is(essence(post($first, $requests[1][0], { model => 'demo', %{$requests[1][1]} })), $alone[1],
   'again');
for my $round (1 .. 3) {
    my @together = map { essence($_) } parallel($first, @requests);
    is_deeply(\@together, \@alone, "all 32 together, round $round");
}

# Eight times the same at once.
for my $temperature (0, 1) {
    my $body = long_body(60, temperature => $temperature, seed => 42, logprobs => 1);
    my @same = parallel($first, map { ['/v1/completions', $body] } 1 .. 8);
    is(scalar keys %{{ map { essence($_) => 1 } @same }}, 1,
       "temperature $temperature: 8 at once are one");
}
my %texts = map { essence(completion($first, long_body(30, temperature => 2, seed => $_))) => 1 }
    1 .. 4;
is(scalar keys %texts, 4, 'seeds differ');
is(scalar keys %{{ map { essence(completion($first, long_body(30, temperature => 2))) => 1 }
    1 .. 3 }}, 3, 'no seed: every answer is another');

# Other threads, other chunks.
my $second = server(threads => 2, model_block => 'batch_tokens 16; batch_sequences 16;');
my @other = map { essence(post($second, $_->[0], { model => 'demo', %{$_->[1]} })) } @requests;
is_deeply(\@other, \@alone, 'two threads, chunks of 16: alone');
is_deeply([map { essence($_) } parallel($second, @requests)], \@alone,
          'two threads, chunks of 16: together');

finish();
