package Moe::Chain;

# Writes a tiny model that says what a test wants it to say: a Mixtral whose layer adds nothing,
# whose embeddings are the unit vectors, and whose output weights name what follows each token.
#
#     my $model = write_chain($directory, template => $jinja, special => ['<|channel|>'],
#                             answers => { name => ['<think>', 'Let', ' me', ...] });
#     chat($server, '@name', { %{$model->{name}} });
#
# An answer is a list of tokens, each of them an added token of this text, and ends with the end
# token.  It follows the token @name, with which the prompt must end.  The request's members allow
# the answer's tokens only, and a frequency penalty lets a token that comes again be followed by
# something else.

use strict;
use warnings;
use utf8;

use Exporter qw(import);
use JSON::PP ();
use Moe::Server;

our @EXPORT = qw(write_chain);

use constant {
    WIDTH => 1024,              # of the model, and its vocabulary
    BYTES => 288,               # ids of the demo model's vocabulary that are kept
    LAST => 1,                  # ends an answer
    LOGIT => 30,                # of what follows, at least
    PENALTY => 2,
    MARGIN => 0.5,
};

my $json = JSON::PP->new->utf8->canonical;


# The demo model's first tokens: control tokens and bytes.
sub base_tokenizer {
    open my $file, '<:raw', "$Moe::Server::MODEL/tokenizer.json" or die "tokenizer.json: $!";
    my $tokenizer = $json->decode(do { local $/; <$file> });
    my $vocab = $tokenizer->{model}{vocab};

    $vocab->{$_} < BYTES or delete $vocab->{$_} for keys %$vocab;
    $tokenizer->{model}{merges} = [grep {
        exists $vocab->{join '', ref $_ ? @$_ : split / /}
    } @{$tokenizer->{model}{merges}}];
    return $tokenizer;
}


# Adds the texts as tokens, those that it does not have.
sub add_tokens {
    my ($tokenizer, $ids, $special) = @_;
    my %special = map { $_ => 1 } @$special;

    push @{$tokenizer->{added_tokens}}, map {
        { id => $ids->{$_}, content => $_, special => $special{$_} ? \1 : \0, normalized => \0,
          single_word => \0, lstrip => \0, rstrip => \0 }
    } sort { $ids->{$a} <=> $ids->{$b} } grep { $ids->{$_} >= BYTES } keys %$ids;
    return;
}


# What each step of an answer asks of the logits behind its token: those of what follows must exceed
# those of what else may, with the penalty for what came so far.
sub constraints {
    my ($followers, $from, @ids) = @_;
    my %allowed = map { $_ => 1 } @ids;
    my (%count, @constraints);

    for my $id (@ids) {
        push @constraints, map {
            [$from, $id, $_, PENALTY * (($count{$id} // 0) - ($count{$_} // 0)) + MARGIN]
        } grep { $allowed{$_} && $_ != $id } keys %{$followers->{$from}};
        $count{$id}++;
        $from = $id;
    }
    return @constraints;
}


# from => { id => logit } that let greedy decoding give all answers, each a list of ids behind the
# one that it follows.
sub solve {
    my (@answers) = @_;
    my (%logits, $changed);

    for my $answer (@answers) {
        $logits{$answer->[$_ - 1]}{$answer->[$_]} = LOGIT for 1 .. $#$answer;
    }
    my @constraints = map { constraints(\%logits, @$_) } @answers;
    for (0 .. 100) {
        $changed = 0;
        for (@constraints) {
            my ($from, $id, $other, $more) = @$_;
            my $least = $logits{$from}{$other} + $more;

            ($logits{$from}{$id}, $changed) = ($least, $_) if $logits{$from}{$id} < $least;
        }
        return \%logits if !$changed;
    }
    die "no model says this: @$changed";
}


sub weights {
    my ($logits) = @_;
    my $scale = sqrt(WIDTH);
    my $one = pack('f<', 1);
    my $output = "\0" x (4 * WIDTH * WIDTH);
    my $zeroes = sub { "\0" x (4 * $_[0] * $_[1]) };

    for my $from (keys %$logits) {
        substr($output, 4 * ($_ * WIDTH + $from), 4) = pack('f<', $logits->{$from}{$_} / $scale)
            for keys %{$logits->{$from}};
    }
    my $layer = 'model.layers.0';
    my $experts = "$layer.block_sparse_moe";
    return (
        'model.embed_tokens.weight' => [[WIDTH, WIDTH], join("\0" x (4 * WIDTH), ($one) x WIDTH)],
        'lm_head.weight' => [[WIDTH, WIDTH], $output],
        'model.norm.weight' => [[WIDTH], $one x WIDTH],
        (map { ("$layer.$_.weight" => [[WIDTH], $one x WIDTH]) }
            qw(input_layernorm post_attention_layernorm)),
        (map { ("$layer.self_attn.${_}_proj.weight" => [[32, WIDTH], $zeroes->(32, WIDTH)]) }
            qw(q k v)),
        "$layer.self_attn.o_proj.weight" => [[WIDTH, 32], $zeroes->(WIDTH, 32)],
        "$experts.gate.weight" => [[2, WIDTH], $zeroes->(2, WIDTH)],
        (map { ("$experts.experts.$_.w1.weight" => [[32, WIDTH], $zeroes->(32, WIDTH)],
                "$experts.experts.$_.w3.weight" => [[32, WIDTH], $zeroes->(32, WIDTH)],
                "$experts.experts.$_.w2.weight" => [[WIDTH, 32], $zeroes->(WIDTH, 32)]) } 0, 1),
    );
}


sub safetensors {
    my (%tensors) = @_;
    my ($header, $data) = ({}, '');

    for my $name (sort keys %tensors) {
        my ($shape, $bytes) = @{$tensors{$name}};

        $header->{$name} = { dtype => 'F32', shape => $shape,
                             data_offsets => [length $data, length($data) + length $bytes] };
        $data .= $bytes;
    }
    my $text = $json->encode($header);
    $text .= ' ' x (-length($text) % 8);
    return pack('Q<', length $text) . $text . $data;
}


# answers: name => tokens; template; special: texts of special tokens; after: tokens that answers
# follow, too, by name; ends: tokens that end an answer, too.  Returns the members of requests by
# the answers' names.
sub write_chain {
    my ($directory, %args) = @_;
    my (%ids, %members, @chains);
    my $answers = $args{answers};
    my $tokenizer = base_tokenizer();
    my %before = map { $_ => ["\@$_", @{$args{after}{$_} // []}] } keys %$answers;

    for my $text (map { @{$before{$_}}, @{$answers->{$_}} } sort keys %$answers) {
        $ids{$text} //= $tokenizer->{model}{vocab}{$text} // BYTES + keys %ids;
    }
    die 'too many tokens' if BYTES + keys(%ids) > WIDTH;
    for my $name (sort keys %$answers) {
        my @answer = (map({ $ids{$_} } @{$answers->{$name}}), LAST);
        my %allowed = map { $_ => 1 } @answer;

        push @chains, map { [$ids{$_}, @answer] } @{$before{$name}};
        $members{$name} = { allowed_token_ids => [sort { $a <=> $b } map { $_ + 0 } keys %allowed],
                            frequency_penalty => PENALTY, temperature => 0 };
    }
    mkdir $directory or die "$directory: $!";
    Moe::Server::save_file("$directory/config.json", $json->encode({
        model_type => 'mixtral', architectures => ['MixtralForCausalLM'], hidden_act => 'silu',
        hidden_size => WIDTH, vocab_size => WIDTH, intermediate_size => 32, num_hidden_layers => 1,
        num_attention_heads => 1, num_key_value_heads => 1, head_dim => 32, num_local_experts => 2,
        num_experts_per_tok => 1, max_position_embeddings => 4096, rms_norm_eps => 1e-5,
        rope_theta => 10000, tie_word_embeddings => \0,
    }));
    Moe::Server::save_file("$directory/generation_config.json", $json->encode({
        eos_token_id => [LAST, map { $ids{$_} } grep { $ids{$_} } @{$args{ends} // []}],
    }));
    add_tokens($tokenizer, \%ids, $args{special} // []);
    Moe::Server::save_file("$directory/tokenizer.json", $json->encode($tokenizer));
    Moe::Server::save_file("$directory/tokenizer_config.json",
               $json->encode({ chat_template => $args{template} }));
    Moe::Server::save_file("$directory/model.safetensors", safetensors(weights(solve(@chains))));
    return \%members;
}

1;
