# n and best_of: several answers to one prompt, whole and streamed; how they are counted.

use lib 't/lib';
use Moe::Test;

my $server = server(http => 'log_format counts "$moe_prompt_tokens $moe_completion_tokens";'
    . ' access_log %PREFIX%/counts.log counts;');
my %body = (prompt => 'Syntax:', max_tokens => 24, temperature => 1.3, logprobs => 0);
my @prompts = ('Syntax:', 'Default: gzip');

sub sum {
    my $sum = 0;

    $sum += $_ for @_;
    return $sum;
}

# The answer of one prompt and seed alone; its mean log-probability with it.
sub alone {
    my ($prompt, $seed) = @_;
    my $json = completion($server, { %body, prompt => $prompt, seed => $seed })->{json};
    my $choice = $json->{choices}[0];
    my @logprobs = @{$choice->{logprobs}{token_logprobs}};

    delete $choice->{index};
    return { choice => $choice, usage => $json->{usage}, seed => $seed,
             mean => sum(@logprobs) / @logprobs };
}

# What choices are, but for their indexes, which must count from 0.
sub indexed {
    my ($choices, $name) = @_;

    is_deeply([map { delete $_->{index} } @$choices], [0 .. $#$choices], "$name: indexes");
    return $choices;
}

sub is_usage {
    my ($usage, $prompt, $completion, $name) = @_;

    is_deeply([@$usage{qw(prompt_tokens completion_tokens total_tokens)}],
              [$prompt, $completion, $prompt + $completion], "$name: usage");
    return;
}

# Four seeds of which the first does not give the best answer.
my (%alone, @four, @ranked);
for my $seed (70 .. 90) {
    @four = map { alone('Syntax:', $_) } $seed .. $seed + 3;
    @ranked = sort { $b->{mean} <=> $a->{mean} } @four;
    $body{seed} = $seed;
    last if $ranked[0]{seed} != $seed;
}
isnt($ranked[0]{seed}, $body{seed}, 'the best is not the first');
%alone = ('Syntax:' => \@four,
          $prompts[1] => [map { alone($prompts[1], $_->{seed}) } @four]);
my %texts = map { $_->{choice}{text} => 1 } @four;
cmp_ok(scalar keys %texts, '>', 2, 'seeds differ');

# Choice k is drawn with seed + k.
my $three = completion($server, { %body, n => 3 })->{json};
is_deeply(indexed($three->{choices}, 'n 3'), [map { $_->{choice} } @four[0 .. 2]],
          'n 3: the answers of the seeds');
is_usage($three->{usage}, $four[0]{usage}{prompt_tokens},
         sum(map { $_->{usage}{completion_tokens} } @four[0 .. 2]), 'n 3');

# Several prompts: the choices of the first come first.
my $pairs = completion($server, { %body, prompt => \@prompts, n => 2 })->{json};
is_deeply(indexed($pairs->{choices}, 'two prompts'),
          [map { my $prompt = $_; map { $alone{$prompt}[$_]{choice} } 0, 1 } @prompts],
          'two prompts: the answers of each');
is_usage($pairs->{usage}, sum(map { $alone{$_}[0]{usage}{prompt_tokens} } @prompts),
         sum(map { my $prompt = $_; map { $alone{$prompt}[$_]{usage}{completion_tokens} } 0, 1 }
             @prompts), 'two prompts');

# A stream has the same, each event one choice.
my $streamed = collect_all($server, '/v1/completions', { %body, prompt => \@prompts, n => 2,
    stream_options => { include_usage => \1 } });
is_deeply([map { $streamed->{texts}{$_} } 0 .. 3], [map { $_->{text} } @{$pairs->{choices}}],
          'streamed texts');
is_deeply([map { $streamed->{finishes}{$_} } 0 .. 3],
          [map { [$_->{finish_reason}] } @{$pairs->{choices}}], 'streamed: one finish reason each');
is_deeply(counts($streamed->{usage}), counts($pairs->{usage}), 'streamed usage');
ok($streamed->{done} && $streamed->{complete}, 'streamed: whole');

# Chats.
my %chat = (max_tokens => 16, temperature => 1.5, seed => 5);
my @chats = map { chat($server, 'nginx', { %chat, seed => $_ })->{json}{choices}[0]{message} } 5, 6;
my $two = chat($server, 'nginx', { %chat, n => 2 })->{json};
is_deeply([map { $_->{message} } @{$two->{choices}}], \@chats, 'chat: the answers of the seeds');
$streamed = collect_all($server, '/v1/chat/completions', { %chat, n => 2,
    messages => [{ role => 'user', content => 'nginx' }] });
is_deeply([map { $streamed->{texts}{$_} } 0, 1], [map { $_->{content} } @chats], 'chat: streamed');
is_deeply([sort map { $_->{choices}[0]{index} }
               grep { $_->{choices}[0]{delta}{role} } @{$streamed->{events}}], [0, 1],
          'chat: one role each');

# Without temperature all are alike; without a seed they are not.
my $greedy = completion($server, { %body, n => 3, temperature => 0 })->{json}{choices};
is($_->{text}, $greedy->[0]{text}, 'greedy choices are equal') for @$greedy[1, 2];
my %drawn = map { $_->{text} => 1 }
    @{completion($server, { %body, n => 4, seed => undef })->{json}{choices}};
cmp_ok(scalar keys %drawn, '>', 1, 'choices without a seed differ');

# best_of: the most probable per token come first, all are paid for.
for my $n (1, 2, 4) {
    my $best = completion($server, { %body, n => $n, best_of => 4 })->{json};
    my @expected = $n == 4 ? @four : @ranked[0 .. $n - 1];
    is_deeply(indexed($best->{choices}, "the best $n of 4"), [map { $_->{choice} } @expected],
              "the best $n of 4");
    is_usage($best->{usage}, $four[0]{usage}{prompt_tokens},
             sum(map { $_->{usage}{completion_tokens} } @four), "the best $n of 4");
}
my $silent = completion($server, { %body, best_of => 4, logprobs => undef })->{json}{choices}[0];
is($silent->{text}, $ranked[0]{choice}{text}, 'the best, without logprobs');
is($silent->{logprobs}, undef, 'no logprobs unless asked for');
my $each = completion($server, { %body, prompt => \@prompts, best_of => 4 })->{json}{choices};
is_deeply([map { $_->{text} } @$each],
          [map { (sort { $b->{mean} <=> $a->{mean} } @{$alone{$_}})[0]{choice}{text} } @prompts],
          'the best of each prompt');
is(completion($server, { %body, best_of => 3, max_tokens => 0 })->{json}{choices}[0]{text}, '',
   'the best of nothing');
is_deeply([sort keys %{collect_all($server, '/v1/completions', { %body, n => 2, best_of => 2 })
                           ->{texts}}], [0, 1], 'best_of equal to n can be streamed');

# Limits.
for my $case (
    [{ n => 2, best_of => 1 }, 'best_of'],
    [{ best_of => 2, stream => \1 }, 'best_of'],
    [{ n => 65, prompt => \@prompts }, 'n'],
    [{ best_of => 65, prompt => \@prompts }, 'best_of'],
    [{ prompt => [('a') x 129] }, 'prompt'],
    [{ n => 129 }, 'n'],
) {
    my ($members, $param) = @$case;
    my $answer = completion($server, { %body, %$members });
    is($answer->{status}, 400, substr(json_encode($members), 0, 50) . ': refused');
    is($answer->{json}{error}{param}, $param, '... naming the field');
}
is(scalar @{completion($server, { %body, n => 64, prompt => \@prompts, max_tokens => 1 })
                ->{json}{choices}}, 128, 'as many as may be');

# Who goes away takes all of them along.
my $client = hold($server, long_body(1500, n => 4));
ok(wait_until(5, sub { running($server) == 4 }), 'four run');
$client->close;
ok(idle($server, 2), 'and end with their client');

# Logs count as usage does.
like($server->log_text('counts.log'), qr/^$three->{usage}{prompt_tokens}
     \ $three->{usage}{completion_tokens}$/mx, 'variables');

finish();
