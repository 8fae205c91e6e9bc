# Log-probabilities: their form for both routes, finite numbers, the same in a stream; echo.

use lib 't/lib';
use Moe::Test;

my $server = server();

sub numbers_are_sound {
    my ($name, @numbers) = @_;

    is(scalar(grep { !defined || $_ > 0 || $_ < -9999 || $_ != $_ } @numbers), 0,
       "$name: log-probabilities are finite and not positive");
    return;
}

# Completions.
for my $top (0, 1, 5, 20) {
    my $choice = completion($server, long_body(12, logprobs => $top))->{json}{choices}[0];
    my $logprobs = $choice->{logprobs};

    is(scalar @{$logprobs->{tokens}}, 12, "logprobs $top: one entry per token");
    is(join('', @{$logprobs->{tokens}}), $choice->{text}, 'the tokens are the text');
    numbers_are_sound("logprobs $top", @{$logprobs->{token_logprobs}},
                      map { values %{$_ // {}} } @{$logprobs->{top_logprobs} // []});
    my $offset = 0;
    my @offsets = map { my $at = $offset; $offset += length; $at } @{$logprobs->{tokens}};
    is_deeply($logprobs->{text_offset}, \@offsets, "logprobs $top: text offsets");
    next if $top == 0;
    for my $i (0 .. 11) {
        my $candidates = $logprobs->{top_logprobs}[$i];
        my ($best) = sort { $candidates->{$b} <=> $candidates->{$a} } keys %$candidates;
        is($candidates->{$best}, $logprobs->{token_logprobs}[$i], "token $i of $top is the best");
        cmp_ok(scalar keys %$candidates, '<=', $top + 1, "token $i: at most $top and itself");
    }
}

# Probabilities add up to at most one.
my $twenty = completion($server, long_body(5, logprobs => 20))->{json}{choices}[0]{logprobs};
for my $candidates (@{$twenty->{top_logprobs}}) {
    my $sum = 0;
    $sum += exp for values %$candidates;
    cmp_ok($sum, '<=', 1.0001, 'no more than all probability');
    cmp_ok($sum, '>', 0.5, 'and most of it for twenty candidates');
}

# echo scores the prompt; the first token has nothing before it.
for my $prompt ("\n1. Carol has 20", 'Syntax: gzip') {
    my $choice = completion($server, { prompt => $prompt, max_tokens => 0, echo => \1,
        logprobs => 1, temperature => 0 })->{json}{choices}[0];
    my $logprobs = $choice->{logprobs};
    my (undef, @scored) = @{$logprobs->{token_logprobs}};

    is($choice->{text}, $prompt, 'echo: text');
    is($logprobs->{token_logprobs}[0], undef, 'echo: the first token has no log-probability');
    numbers_are_sound('echo', @scored);
    is(scalar @{$logprobs->{tokens}}, scalar(my @ids = tokenize($prompt)), 'echo: one per token');
    my $text = join '', @{$logprobs->{tokens}};
    $text =~ s/^<\|bos\|>//;
    is($text, $prompt, 'echo: the tokens are the prompt');
    is($logprobs->{text_offset}[-1], length($prompt) - length $logprobs->{tokens}[-1],
       'echo: the last offset');
    my $more = completion($server, { prompt => $prompt, max_tokens => 3, echo => \1,
        logprobs => 1, temperature => 0 })->{json}{choices}[0]{logprobs};
    is(scalar @{$more->{tokens}}, @ids + 3, 'echo with three tokens more');
    is_deeply([@{$more->{token_logprobs}}[0 .. $#ids]], $logprobs->{token_logprobs},
       'scores the prompt alike');
}

# Chats.
my @question = (messages => [{ role => 'user', content => 'Größe?' }], temperature => 0);
my $chat = post($server, '/v1/chat/completions', { model => 'demo', @question, max_tokens => 20,
    logprobs => \1, top_logprobs => 3 })->{json}{choices}[0];
my @content = @{$chat->{logprobs}{content}};
is($content[-1]{token}, '<|eos|>', 'chat: the end token is scored, too');
my @shown = @content[0 .. $#content - 1];
is(join('', map { $_->{token} } @shown), $chat->{message}{content}, 'chat: tokens are the text');
is(join('', map { pack 'C*', @{$_->{bytes}} } @shown),
   do { my $bytes = $chat->{message}{content}; utf8::encode($bytes); $bytes },
   'chat: bytes are the text');
numbers_are_sound('chat', map { $_->{logprob}, map { $_->{logprob} } @{$_->{top_logprobs}} }
                              @content);
is_deeply([map { scalar @{$_->{top_logprobs}} } @content], [(3) x @content], 'three candidates');
is_deeply([map { $_->{top_logprobs}[0]{token} } @content], [map { $_->{token} } @content],
          'greedy takes the first');
my $bare = post($server, '/v1/chat/completions', { model => 'demo', @question, max_tokens => 2,
    logprobs => \1 })->{json}{choices}[0]{logprobs}{content};
is_deeply([map { $_->{top_logprobs} } @$bare], [[], []], 'no candidates unless asked for');

# Streams carry the same.
my $streamed = collect_all($server, '/v1/chat/completions', { @question, max_tokens => 20,
    logprobs => \1, top_logprobs => 3 });
is_deeply([map { @{($_->{choices}[0]{logprobs} // {})->{content} // []} } @{$streamed->{events}}],
          \@content, 'chat: streamed log-probabilities');
my $whole = completion($server, long_body(30, logprobs => 2))->{json}{choices}[0]{logprobs};
$streamed = collect_all($server, '/v1/completions', long_body(30, logprobs => 2));
for my $member (qw(tokens token_logprobs top_logprobs text_offset)) {
    is_deeply([map { @{($_->{choices}[0]{logprobs} // {})->{$member} // []} }
                   @{$streamed->{events}}], $whole->{$member}, "streamed $member");
}

# Extreme parameters do not make infinities.
my $forced = completion($server, long_body(3, logprobs => 5, allowed_token_ids => [300, 301]))
    ->{json}{choices}[0]{logprobs};
numbers_are_sound('allowed_token_ids', @{$forced->{token_logprobs}},
                  map { values %$_ } @{$forced->{top_logprobs}});

finish();
