# moe-engine inspect says what a model holds, or in one line why it is refused.

use lib 't/lib';
use Moe::GGUF;
use Moe::Test;
use File::Temp qw(tempdir);

my $engine = "$Moe::Server::BUILD/moe-engine";
my $directory = tempdir('moe-inspect-XXXXXX', TMPDIR => 1, CLEANUP => 1);

sub inspect {
    my ($model) = @_;
    my $text = `$engine inspect $model 2>&1`;

    return ($? >> 8, $text);
}

sub synth {
    my ($shape, @options) = @_;
    my $path = "$directory/$shape.gguf";

    system($engine, 'synth', '--shape', $shape, '--layers', 2, @options, $path) == 0
        or die "synth $shape";
    return $path;
}

# The demo model with a template that shows tools.
sub with_tools {
    my $path = "$directory/tools";

    mkdir $path or die "$path: $!";
    for my $file (glob "$Moe::Server::MODEL/*") {
        symlink $file, "$path/" . ($file =~ s{.*/}{}r) or die "$path: $!";
    }
    open my $out, '>', "$path/chat_template.jinja" or die "$path: $!";
    print $out '{% if tools %}{{ tools | tojson }}<tool_call>{"name": }</tool_call>{% endif %}';
    close $out or die "$path: $!";
    return $path;
}

# What, and lines of what is said of it.
my @cases = (
    [$Moe::Server::MODEL,
     'family         deepseek_v3',
     'parameters     6,978,608, 3,439,664 active per token',
     'sizes          hidden 256, vocabulary 2048, context 2048',
     'layers         4: 1 dense, 3 MoE',
     '  mixer        MLA, 4 heads of 32 + 16 rope, values 32, latent 64, queries 128, softmax scale 0.1443376',
     '  rope         default, theta 10000, 16 dimensions in neighbouring pairs',
     '  dense        width 512',
     '  experts      16 of width 128, 4 per token from 2 of 4 groups, shared of width 128',
     '  router       sigmoid with selection bias, normalised, scale 2.5',
     'tensors        269 in model.safetensors, 19,924,096 bytes',
     '  F32          4, 256 bytes',
     'end of text    1',
     'sampling       temperature 0',
     'tokenizer      2048 tokens, BPE',
     'chat template  380 bytes',
     '  tool calls   none',
     '  reasoning    none'],
    [synth('qwen3-tiny', '--type', 'q4_0'),
     'family         qwen3_moe',
     'sizes          hidden 256, vocabulary 2560, context 4096',
     'layers         2: 0 dense, 2 MoE',
     '  mixer        GQA, 8 heads of 48, 2 of keys and values, q and k normalised by head, softmax scale 0.1443376',
     '  rope         default, theta 1e+06, 48 dimensions in halves',
     '  experts      32 of width 96, 4 per token',
     '  router       softmax, normalised, scale 1',
     'tensors        27 in qwen3-tiny.gguf, 3,739,392 bytes',
     '  Q4_0         16, 3,667,968 bytes',
     'end of text    2000',
     'sampling       no defaults given'],
    [synth('deepseek-tiny', '--type', 'q4_k'),
     '  rope         yarn, factor 40, theta 10000, 16 dimensions in neighbouring pairs'],
    [synth('olmoe-tiny'), '  mixer        GQA, 4 heads of 64, 4 of keys and values, q and k normalised, softmax scale 0.125'],
    [with_tools(), 'chat template  78 bytes, shows tools', '  tool calls   hermes',
     '  reasoning    none'],
    [synth('mixtral-tiny'), 'family         mixtral'],
    [synth('gpt-oss-tiny'),
     '  mixer        GQA, 8 heads of 64, 2 of keys and values, biases in all projections, sinks, softmax scale 0.125',
     '  rope         yarn, factor 32, theta 150000, 64 dimensions in halves, magnitude 1.346574',
     '  window       of 128 tokens in 1 layers'],
);

for my $case (@cases) {
    my ($model, @lines) = @$case;
    my ($code, $text) = inspect($model);
    my ($name) = $model =~ m{([^/]+)$};

    is($code, 0, "$name: can be served");
    like($text, qr/^\Q$_\E$/m, "$name: $lines[0]") for @lines;
}

# Refusals.
write_gguf($Moe::Server::MODEL, "$directory/demo.gguf");
my $gguf = file_content("$directory/demo.gguf");
for my $case (
    ['another architecture', $gguf =~ s/deepseek2/deepseek9/r,
     'broken.gguf: general.architecture: "deepseek9" is not a supported family'],
    ['a key nobody knows', $gguf =~ s/expert_group_count/expert_grape_count/r,
     'broken.gguf: deepseek2.expert_grape_count: unknown key: it may change what the model computes'],
    ['a tensor nobody knows', $gguf =~ s/blk\.1\.ffn_norm\.weight/blk.1.ffn_morn.weight/r,
     'broken.gguf: blk.1.ffn_norm.weight: missing'],
    ['cut', substr($gguf, 0, 5_000_000), 'truncated file?'],
    ['another tokenizer', $gguf =~ s/deepseek-v3/deepseek-v9/r,
     'broken.gguf: tokenizer.ggml.pre: "deepseek-v9" is not supported'],
) {
    my ($name, $content, $cause) = @$case;
    my $path = "$directory/broken.gguf";

    open my $out, '>:raw', $path or die "$path: $!";
    print $out $content;
    close $out or die "$path: $!";
    my ($code, $text) = inspect($path);
    is($code, 1, "$name: refused");
    like($text, qr/^moe-engine: .*\Q$cause\E$/m, "$name: the cause");
}

finish();
