# A model of every family behind one nginx: what inspect says of it, whole and damaged, the
# reference implementation's greedy tokens (t/golden/reference.json) through HTTP, and chats, with
# tools and without, that are the same in both streaming modes.

use lib 't/lib';
use Moe::Test;
use File::Temp qw(tempdir);

my $golden = json_decode(file_content('t/golden/reference.json'));
my $models = tempdir('moe-families-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $vocabulary = 288;
my $context = 4096;         # of what is served: some templates take a page
my @families;

# How these families write chats: templates of the golden data.  The others' is qwen3's.
my %template = (
    deepseek_v2 => 'deepseek_v3_1', deepseek_v3 => 'deepseek_v3_1', kimi_k2 => 'kimi_k2',
    minimax_m2 => 'minimax_m2', glm4_moe => 'glm_4_5', glm4_moe_lite => 'glm_4_7',
    gpt_oss => 'gpt_oss',
);

chmod 0755, $models;
system("$Moe::Server::BUILD/golden/reference_test", $models) == 0
    or die "make $Moe::Server::BUILD/golden/reference_test";

# Exit status of inspect, and all that it printed.
sub inspect {
    my ($model) = @_;
    my $text = `$Moe::Server::BUILD/moe-engine inspect $model 2>&1`;

    return ($? >> 8, $text);
}

# Damages one of the model's files, looks at it, and puts the file back.
sub is_refused {
    my ($name, $file, $content, $cause) = @_;
    my $path = "$models/$name/$file";
    my $whole = file_content($path);

    save_file($path, $content);
    my ($status, $text) = inspect("$models/$name");
    is($status, 1, "$name, damaged $file: exit status");
    like($text, qr{^moe-engine: .*$cause.*\n\z}, "$name, damaged $file: one line with the cause");
    save_file($path, $whole);
    return;
}

sub check_refusals {
    my ($name, $config) = @_;
    my %scaling = (%{$config->{rope_scaling} // { factor => 2 }}, rope_type => 'magic');
    my $weights = file_content("$models/$name/model.safetensors");

    is_refused($name, 'config.json', json_encode({ %$config, %{$_->[0]} }), $_->[1]) for (
        [{ model_type => 'magic' }, qr/config\.json: model_type: "magic"/],
        [{ rope_scaling => \%scaling }, qr/config\.json: rope_scaling: rope_type: "magic"/],
        [{ quantization_config => { quant_method => 'magic' } },
         qr/config\.json: quantization_config: .*"magic"/],
        [{ hidden_size => 96 }, qr/safetensors: \S+: shape \[.*, expected \[/],
    );
    is_refused($name, 'model.safetensors', $weights =~ s/model\.norm\.weight/model.nrom.weight/r,
               qr/safetensors: model\.norm\.weight: missing/);
    return;
}

# The demo model's tokenizer with as many tokens as the models have: control tokens, bytes, the
# first merges.
sub small_tokenizer {
    my $json = json_decode(file_content("$Moe::Server::MODEL/tokenizer.json"));
    my $vocab = $json->{model}{vocab};

    $vocab->{$_} < $vocabulary or delete $vocab->{$_} for keys %$vocab;
    $json->{model}{merges} = [grep {
        exists $vocab->{join '', ref $_ ? @$_ : split / /}
    } @{$json->{model}{merges}}];
    return $json;
}

# Adds a model to those that are served.
sub serve {
    my ($name, $config, $greedy) = @_;
    my $template = $template{$config->{model_type}} // 'qwen3';

    save_file("$models/$name/config.json",
              json_encode({ %$config, max_position_embeddings => $context }));
    save_file("$models/$name/chat_template.jinja",
              file_content("t/golden/templates/$template.jinja"));
    push @families, { name => $name, greedy => $greedy };
    return;
}

my $tokenizer = small_tokenizer();
my %seen;
for my $case (@{$golden->{cases}}) {
    my $name = lc($case->{name}) =~ s/[^a-z0-9.]+/-/gr;

    rename "$models/$case->{name}", "$models/$name" or die "$name: $!";
    save_file("$models/$name/tokenizer.json", json_encode($tokenizer));
    symlink "$Moe::Server::MODEL/tokenizer_config.json", "$models/$name/tokenizer_config.json"
        or die "$name: $!";
    my ($status, $text) = inspect("$models/$name");
    is($status, 0, "$name: inspect") or diag($text);
    my $config = $case->{config};
    my $experts = $config->{num_experts} // $config->{n_routed_experts}
        // $config->{num_local_experts} // $config->{moe_num_experts};
    like($text, qr/^family +\Q$config->{model_type}\E$/m, "$name: its family");
    like($text, qr/^  experts +$experts of .*\b$config->{num_experts_per_tok} per token/m,
         "$name: its experts");
    like($text, qr/^sizes +hidden 64, vocabulary $vocabulary, context 256(, |$)/m,
         "$name: its sizes");
    like($text, qr/^  mixer +(MLA|GQA), [^()]*$/m, "$name: its mixer");
    like($text, qr/^end of text +1$/m, "$name: its end of text");
    like($text, qr/^tokenizer +$vocabulary tokens, BPE$/m, "$name: its tokenizer");
    check_refusals($name, $config);
    serve($name, $config, $case->{greedy}) if !$seen{$config->{model_type}}++
        || $config->{quantization_config};
}

my ($first, @others) = map { $_->{name} } @families;
my $server = server(
    model => "$models/$first", context => $context,
    http => join('', map { "moe_model $_ $models/$_ { threads 1; context $context; }\n" } @others),
    server => 'location /any/ { moe_pass any; }', model_block => "alias $first;");
ok(wait_until(30, sub { get($server, '/any/health')->{status} == 200 }), 'all of them serve');
my @told = map { $_->{id} } @{get($server, '/any/v1/models')->{json}{data}};
is_deeply([sort grep { $_ ne 'demo' } @told], [sort $first, @others], 'all of them are told');

# A chat in one piece, which a stream must equal; its usage.
sub check_chat {
    my ($name, %members) = @_;
    my %chat = (model => $name, max_tokens => 24, temperature => 0, ignore_eos => \1, %members);
    my $answer = post($server, '/any/v1/chat/completions', \%chat);
    my $stream = collect_all($server, '/any/v1/chat/completions',
                             { %chat, stream_options => { include_usage => \1 } });
    my $choice = $answer->{json}{choices}[0];
    my %parts;

    is($answer->{status}, 200, "$name: status") or diag($answer->{body});
    for my $delta (map { $_->{delta} } map { @{$_->{choices}} } @{$stream->{events}}) {
        $parts{$_} .= $delta->{$_} // '' for qw(content reasoning_content);
    }
    is_deeply(\%parts, { map { $_ => $choice->{message}{$_} // '' } keys %parts },
              "$name: the same text in a stream");
    cmp_ok(length join('', values %parts), '>', 0, "$name: there is some");
    is_deeply([$stream->{finish}, $stream->{role}, counts($stream->{usage})],
              [$choice->{finish_reason}, 'assistant', counts($answer->{json}{usage})],
              "$name: its end, role and usage");
    return $answer->{json}{usage};
}

my @question = ({ role => 'system', content => 'Be brief.' },
                { role => 'user', content => 'Was ist nginx? 你好' });
my @tools = ({ type => 'function', function => { name => 'look_up', description => 'Looks it up.',
    parameters => { type => 'object', properties => { word => { type => 'string' } },
                    required => ['word'] } } });
my $call = { id => 'abcdefghi', type => 'function',
             function => { name => 'look_up', arguments => '{"word": "nginx"}' } };
my @history = (@question, { role => 'assistant', tool_calls => [$call] },
               { role => 'tool', tool_call_id => 'abcdefghi', content => '{"found": true}' });

for my $family (@families) {
    my ($name, $greedy) = @$family{qw(name greedy)};
    my $body = { model => $name, prompt => $golden->{prompt}, max_tokens => scalar @$greedy,
                 temperature => 0, ignore_eos => \1, return_token_ids => \1 };
    my $choice = post($server, '/any/v1/completions', $body)->{json}{choices}[0];

    is_deeply($choice->{token_ids}, $greedy, "$name: the reference's tokens");
    is(collect_all($server, '/any/v1/completions', $body)->{text}, $choice->{text},
       "$name: streamed");
    my @tokens = map { $_->{prompt_tokens} } (
        check_chat($name, messages => \@question),
        check_chat($name, messages => \@question, tools => \@tools),
        check_chat($name, messages => \@history, tools => \@tools),
    );
    cmp_ok($tokens[1], '>', $tokens[0] + 60, "$name: the model is shown the tools");
    cmp_ok($tokens[2], '>', $tokens[1] + 40, "$name: and a call of one");
}

finish();
