package Moe::GGUF;

# Writes the demo model as a GGUF file (architecture deepseek2, as older converters did: kv_b_proj
# whole), numbers as they are in its safetensors file.

use strict;
use warnings;

use Exporter qw(import);
use JSON::PP qw(decode_json);

our @EXPORT = qw(write_gguf);

my %TYPES = (F32 => 0, F16 => 1, BF16 => 30);

my %ENDS = (
    'model.embed_tokens.weight' => 'token_embd.weight',
    'model.norm.weight' => 'output_norm.weight',
    'lm_head.weight' => 'output.weight',
);

my %IN_LAYER = (
    'input_layernorm.weight' => 'attn_norm.weight',
    'post_attention_layernorm.weight' => 'ffn_norm.weight',
    'self_attn.q_a_proj.weight' => 'attn_q_a.weight',
    'self_attn.q_a_layernorm.weight' => 'attn_q_a_norm.weight',
    'self_attn.q_b_proj.weight' => 'attn_q_b.weight',
    'self_attn.kv_a_proj_with_mqa.weight' => 'attn_kv_a_mqa.weight',
    'self_attn.kv_a_layernorm.weight' => 'attn_kv_a_norm.weight',
    'self_attn.kv_b_proj.weight' => 'attn_kv_b.weight',
    'self_attn.o_proj.weight' => 'attn_output.weight',
    'mlp.gate.weight' => 'ffn_gate_inp.weight',
    'mlp.gate.e_score_correction_bias' => 'exp_probs_b.bias',
    map { ("mlp.${_}_proj.weight" => "ffn_$_.weight",
           "mlp.shared_experts.${_}_proj.weight" => "ffn_${_}_shexp.weight",
           "mlp.experts.0.${_}_proj.weight" => "ffn_${_}_exps.weight") } qw(gate up down),
);

my %KEYS = (
    num_hidden_layers => 'block_count', max_position_embeddings => 'context_length',
    hidden_size => 'embedding_length', intermediate_size => 'feed_forward_length',
    num_attention_heads => 'attention.head_count', num_experts_per_tok => 'expert_used_count',
    first_k_dense_replace => 'leading_dense_block_count', q_lora_rank => 'attention.q_lora_rank',
    kv_lora_rank => 'attention.kv_lora_rank', n_routed_experts => 'expert_count',
    moe_intermediate_size => 'expert_feed_forward_length',
    n_shared_experts => 'expert_shared_count',
    qk_rope_head_dim => 'rope.dimension_count', n_group => 'expert_group_count',
    topk_group => 'expert_group_used_count', v_head_dim => 'attention.value_length',
);

sub text { utf8::encode(my $text = $_[0]); return pack('Q<', length $text) . $text }
sub uint { return text($_[0]) . pack('L<L<', 4, $_[1]) }
sub number { return text($_[0]) . pack('L<f<', 6, $_[1]) }
sub bool { return text($_[0]) . pack('L<C', 7, $_[1]) }
sub string { return text($_[0]) . pack('L<', 8) . text($_[1]) }
sub strings {
    my ($key, $list) = @_;
    return text($key) . pack('L<L<Q<', 9, 8, scalar @$list) . join '', map { text($_) } @$list;
}
sub ints {
    my ($key, $list) = @_;
    return text($key) . pack('L<L<Q<l<*', 9, 5, scalar @$list, @$list);
}

sub metadata {
    my ($config, $tokenizer, $settings) = @_;
    my (@tokens, @types);

    while (my ($token, $id) = each %{ $tokenizer->{model}{vocab} }) {
        ($tokens[$id], $types[$id]) = ($token, 1);
    }
    $types[$_->{id}] = 3 for @{ $tokenizer->{added_tokens} };
    return (
        string('general.architecture', 'deepseek2'),
        (map { uint("deepseek2.$KEYS{$_}", $config->{$_}) } sort keys %KEYS),
        uint('deepseek2.attention.key_length',
             $config->{qk_nope_head_dim} + $config->{qk_rope_head_dim}),
        number('deepseek2.attention.layer_norm_rms_epsilon', $config->{rms_norm_eps}),
        number('deepseek2.expert_weights_scale', $config->{routed_scaling_factor}),
        bool('deepseek2.expert_weights_norm', 1),
        uint('deepseek2.expert_gating_func', 2),
        string('tokenizer.ggml.model', 'gpt2'),
        string('tokenizer.ggml.pre', 'deepseek-v3'),
        strings('tokenizer.ggml.tokens', \@tokens),
        ints('tokenizer.ggml.token_type', \@types),
        strings('tokenizer.ggml.merges', $tokenizer->{model}{merges}),
        uint('tokenizer.ggml.bos_token_id', $config->{bos_token_id}),
        uint('tokenizer.ggml.eos_token_id', $config->{eos_token_id}),
        bool('tokenizer.ggml.add_bos_token', 1),
        string('tokenizer.chat_template', $settings->{chat_template}),
        number('general.sampling.temp', 0),
    );
}

# Name, dimensions (innermost first), type and data of every tensor.
sub tensors {
    my ($file, $config) = @_;
    my $size = unpack 'Q<', $file;
    my $header = decode_json(substr $file, 8, $size);
    my $bytes = sub {
        my ($from, $to) = @{ $header->{$_[0]}{data_offsets} };
        return substr $file, 8 + $size + $from, $to - $from;
    };
    my @tensors;

    for my $name (sort keys %$header) {
        my ($layer, $rest) = $name =~ /^model\.layers\.(\d+)\.(.*)/;
        my $stored = defined $layer ? $IN_LAYER{$rest} : $ENDS{$name};
        next if !$stored || (defined $layer && $layer >= $config->{num_hidden_layers});
        my @shape = @{ $header->{$name}{shape} };
        my $data = $bytes->($name);
        if ($stored =~ /_exps/) {
            unshift @shape, $config->{n_routed_experts};
            $data .= $bytes->($name =~ s/experts\.0/experts.$_/r) for 1 .. $shape[0] - 1;
        }
        push @tensors, [defined $layer ? "blk.$layer.$stored" : $stored, [reverse @shape],
                        $TYPES{$header->{$name}{dtype}}, $data];
    }
    return @tensors;
}

sub content {
    my ($path) = @_;

    open my $in, '<:raw', $path or die "$path: $!";
    local $/;
    return <$in>;
}

sub padded { return $_[0] . "\0" x (-length($_[0]) % 32) }

sub write_gguf {
    my ($directory, $path) = @_;
    my ($weights, @json) = map { content("$directory/$_") }
        qw(model.safetensors config.json tokenizer.json tokenizer_config.json);
    my ($config, $tokenizer, $settings) = map { decode_json($_) } @json;
    my @keys = metadata($config, $tokenizer, $settings);
    my ($infos, $data) = ('', '');
    my @tensors = tensors($weights, $config);

    for my $tensor (@tensors) {
        my ($name, $dims, $type, $bytes) = @$tensor;
        $infos .= text($name) . pack 'L<Q<*', scalar @$dims, @$dims;
        $infos .= pack 'L<Q<', $type, length $data;
        $data .= padded($bytes);
    }
    open my $out, '>:raw', $path or die "$path: $!";
    print $out padded('GGUF' . pack('L<Q<Q<', 3, scalar @tensors, scalar @keys) . join('', @keys)
                      . $infos), $data;
    close $out or die "$path: $!";
}

1;
