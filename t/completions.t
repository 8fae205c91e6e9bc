# /v1/completions without streaming: shape of the answer, true usage, prompts of every form, echo,
# tiny max_tokens.

use lib 't/lib';
use Moe::Test;

my $server = server();

# The answer itself.
my $answer = completion($server, { prompt => 'Syntax: gzip', temperature => 0, max_tokens => 8 });
my $json = $answer->{json};

is($answer->{status}, 200, 'status');
is($answer->{headers}{'content-type'}, 'application/json', 'content type');
like($json->{id}, qr/^cmpl-[\w-]{8,}$/, 'id');
is($json->{object}, 'text_completion', 'object');
is($json->{model}, 'demo', 'model');
cmp_ok(abs($json->{created} - time()), '<', 60, 'created is now');
is(scalar @{$json->{choices}}, 1, 'one choice');
is($json->{choices}[0]{index}, 0, 'its index');
is($json->{choices}[0]{logprobs}, undef, 'no logprobs unless asked for');
is($json->{choices}[0]{finish_reason}, 'length', 'finished by max_tokens');
is($json->{usage}{completion_tokens}, 8, 'completion tokens');
is($json->{usage}{total_tokens}, $json->{usage}{prompt_tokens} + 8, 'total tokens');

isnt(completion($server, { prompt => 'a', max_tokens => 1 })->{json}{id},
     completion($server, { prompt => 'a', max_tokens => 1 })->{json}{id}, 'ids differ');
is(completion($server, { prompt => 'Syntax: gzip' })->{json}{usage}{completion_tokens}, 16,
   'max_tokens is 16 by default');

# Prompt tokens are counted as the tokenizer counts them.
for my $prompt ('Syntax: gzip', 'x', "Größe: 日本語 🙂\n", 'proxy_pass ' x 40, '') {
    my @ids = tokenize($prompt);
    my $usage = completion($server, { prompt => $prompt, max_tokens => 1 })->{json}{usage};
    is($usage->{prompt_tokens}, scalar @ids, 'prompt tokens of "' . substr($prompt, 0, 20) . '"');
}

# The same prompt as token ids, and lists of both.
my @prompts = ('Syntax: gzip', 'Directive: proxy_pass', 'Default: keepalive_timeout');
my @texts = map {
    completion($server, { prompt => $_, temperature => 0, max_tokens => 12 })
        ->{json}{choices}[0]{text}
} @prompts;
my @ids = map { [tokenize($_)] } @prompts;

is(completion($server, { prompt => $ids[0], temperature => 0, max_tokens => 12 })
    ->{json}{choices}[0]{text}, $texts[0], 'a prompt of token ids');
for my $case (['texts', \@prompts], ['token ids', \@ids],
              ['both', [$ids[0], $prompts[1], $ids[2]]], ['both', [$prompts[0], $ids[1], $prompts[2]]]) {
    my ($form, $prompt) = @$case;
    my $list = completion($server, { prompt => $prompt, temperature => 0, max_tokens => 12 })
        ->{json};
    my @choices = sort { $a->{index} <=> $b->{index} } @{$list->{choices}};
    is_deeply([map { $_->{index} } @choices], [0, 1, 2], "list of $form: indexes");
    is_deeply([map { $_->{text} } @choices], \@texts, "list of $form: texts");
    is($list->{usage}{completion_tokens}, 36, "list of $form: completion tokens are summed");
    is($list->{usage}{prompt_tokens}, (map { scalar @$_ } @ids)[0] + @{$ids[1]} + @{$ids[2]},
       "list of $form: prompt tokens are summed");
}

# echo
for my $prompt ('Syntax: gzip', "Größe 日本 🙂\n") {
    my ($plain, $echo) = map {
        completion($server, { prompt => $prompt, temperature => 0, max_tokens => 5, echo => $_ })
            ->{json}{choices}[0]{text}
    } \0, \1;
    is($echo, $prompt . $plain, 'echo puts the prompt before the text');
}
my $echo = completion($server, { prompt => 'Syntax: gzip', max_tokens => 0, echo => \1 })->{json};
is($echo->{choices}[0]{text}, 'Syntax: gzip', 'echo with max_tokens 0 is the prompt');
is($echo->{usage}{completion_tokens}, 0, 'and generates nothing');

# One to four tokens, also where that cuts a character of several bytes: the two bytes of "é" are
# the only tokens allowed.
my $vocabulary = json_decode(file_content("$Moe::Server::MODEL/tokenizer.json"))->{model}{vocab};
my @halves = ($vocabulary->{"\xC3"}, $vocabulary->{"\xA9"});
for my $n (1 .. 4) {
    my $few = completion($server, { prompt => 'Syntax: gzip', temperature => 0, max_tokens => $n });
    is($few->{json}{usage}{completion_tokens}, $n, "max_tokens $n");
    is($few->{json}{choices}[0]{finish_reason}, 'length', "max_tokens $n: finish reason");
    for my $seed (1 .. 6) {
        my $cut = completion($server, { prompt => 'é', temperature => 2, seed => $seed,
            max_tokens => $n, ignore_eos => \1, allowed_token_ids => \@halves });
        is($cut->{status}, 200, "$n halves of a character, seed $seed");
        like($cut->{json}{choices}[0]{text} // 'none', qr/^[\x{E9}\x{FFFD}]+$/, 'are valid UTF-8');
    }
}

# Values that ask for nothing are accepted, unknown members ignored.
is(completion($server, { prompt => 'a', max_tokens => 1, n => 1, best_of => 1, user => 'u',
    suffix => undef, logit_bias => {}, stop => [], response_format => { type => 'text' },
    no_such_member => { a => [1] } })->{status}, 200, 'harmless members');

# Penalties and bias have their effect.
is(completion($server, { prompt => 'a', temperature => 0, max_tokens => 3,
    logit_bias => { $vocabulary->{Z} => 100 } })->{json}{choices}[0]{text}, 'ZZZ', 'logit_bias');
isnt(completion($server, { prompt => 'a', temperature => 0, max_tokens => 3, frequency_penalty => 2,
    logit_bias => { $vocabulary->{Z} => 21, $vocabulary->{Y} => 20 } })->{json}{choices}[0]{text},
    'ZZZ', 'frequency_penalty');
my $minimum = completion($server, { prompt => 'a', temperature => 0, max_tokens => 9,
    min_tokens => 5, logit_bias => { 1 => 100 } })->{json};
is($minimum->{usage}{completion_tokens}, 6, 'min_tokens holds the end token back');
is($minimum->{choices}[0]{finish_reason}, 'stop', 'which then stops');
is(completion($server, { prompt => 'a', temperature => 0, max_tokens => 9, ignore_eos => \1,
    logit_bias => { 1 => 100 } })->{json}{usage}{completion_tokens}, 9, 'ignore_eos');

finish();
