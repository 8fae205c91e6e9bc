# Stop strings: wherever they fall on token borders, streamed or not; what only began like one is
# sent.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $base = { prompt => 'Syntax: gzip', max_tokens => 60, temperature => 0, ignore_eos => \1 };
my $text = completion($server, $base)->{json}{choices}[0]{text};
my @cases;

# Every stop string made of the text itself cuts it at its first occurrence.
for my $size (1, 2, 3, 7, 20) {
    for (my $start = $size; $start + $size < length $text; $start += 13) {
        my $stop = substr $text, $start, $size;
        push @cases, [json_encode($stop), $stop, substr($text, 0, index $text, $stop), 'stop'];
    }
}

# What never completes is sent, also at the end.
my $tail = substr $text, -6;
push @cases,
    ['a prefix only', "$tail and more", $text, 'length'],
    ['a prefix in the middle', substr($text, 10, 9) . "\x01", $text, 'length'],
    ['never', 'no such text at all', $text, 'length'],
    ['the earliest of several', ['no', substr($text, 30, 5), substr($text, 12, 5)],
        substr($text, 0, (sort { $a <=> $b } map { index $text, $_ }
            substr($text, 30, 5), substr($text, 12, 5), index($text, 'no') < 0 ? () : 'no')[0]),
        'stop'],
    ['sixteen', [(map { "none $_" } 1 .. 15), substr $text, 20, 4],
        substr($text, 0, index $text, substr $text, 20, 4), 'stop'];

for my $case (@cases) {
    my ($name, $stop, $expected, $reason) = @$case;
    my $body = { %$base, stop => $stop };
    my $choice = completion($server, $body)->{json}{choices}[0];
    my $streamed = collect_all($server, '/v1/completions', $body);

    is($choice->{text}, $expected, "text before $name");
    is($choice->{finish_reason}, $reason, "finish reason with $name");
    is($streamed->{text}, $expected, "streamed text before $name");
    is_deeply($streamed->{finishes}, { 0 => [$reason] }, "streamed finish reason with $name");
}

# Options.
my $stop = substr $text, 20, 5;
is(completion($server, { %$base, stop => $stop, include_stop_str_in_output => \1 })
    ->{json}{choices}[0]{text}, substr($text, 0, index($text, $stop) + 5),
   'include_stop_str_in_output');
my $vocabulary = json_decode(file_content("$Moe::Server::MODEL/tokenizer.json"))->{model}{vocab};
my $by_id = completion($server, { %$base, stop_token_ids => [$vocabulary->{Z}],
    logit_bias => { $vocabulary->{Z} => 100 } })->{json};
is($by_id->{choices}[0]{finish_reason}, 'stop', 'stop_token_ids');
is($by_id->{usage}{completion_tokens}, 1, 'stop at once');
is($by_id->{choices}[0]{text}, '', 'the stop token is not returned');
is(completion($server, { %$base, stop => $text, min_tokens => 3 })->{status}, 200,
   'a stop string as long as the text');

# A chat stops too.
my $answer = chat($server, 'What is the default of keepalive_timeout?')
    ->{json}{choices}[0]{message}{content};
is(chat($server, 'What is the default of keepalive_timeout?', { stop => 'imeout' })
    ->{json}{choices}[0]{message}{content}, substr($answer, 0, index $answer, 'imeout'), 'chat');

# After a stop nothing is left running.
ok(idle($server), 'the engine is idle');

finish();
