# A model in GGUF answers what the same model does as a directory; moe_model takes the file or a
# directory that holds it; faults are named.

use lib 't/lib';
use Moe::GGUF;
use Moe::Test;

my $reference = server();
my $body = { prompt => 'Syntax: gzip', max_tokens => 20, seed => 3, temperature => 0.8,
             logprobs => 2 };
my $expected = answers($reference);

sub answers {
    my ($server) = @_;
    my @answers = (completion($server, $body),
                   chat($server, 'What is the default of <|eos|> gzip?'));

    return join "\n", map { $_->{status}, json_encode($_->{json}{choices}) } @answers;
}

like($expected, qr/^200\n.*"text":.*\n200\n.*"message":/, 'a completion and a chat');
my $server = server(start => 0);
my $directory = "$server->{prefix}/model";
mkdir $directory or die "$directory: $!";
write_gguf($Moe::Server::MODEL, "$directory/demo.gguf");
chmod 0755, $directory;
$server->write_config(model => "$directory/demo.gguf");
$server->start;
is(answers($server), $expected, 'the file: the same answers');

# The directory is another way to write the same: the engine stays.
my $engine = $server->engine_pid;
$server->write_config(model => $directory);
$server->reload;
is(answers($server), $expected, 'its directory: the same answers');
is($server->engine_pid, $engine, 'from the same engine');

# A changed file is another model.
utime 1, 1, "$directory/demo.gguf" or die "utime: $!";
$server->reload;
ok(wait_until(15, sub { my $pid = $server->engine_pid; $pid && $pid != $engine }),
   'a changed file restarts the engine');
$server->wait_ready;
is(answers($server), $expected, 'which answers the same');

# Faults: by nginx -t, or when the model is loaded.
my $file = file_content("$directory/demo.gguf");
my $cut = "$server->{prefix}/cut.gguf";
for my $case (
    ['cut in its data', substr($file, 0, 5_000_000), qr/cut\.gguf: .*truncated file/],
    ['another architecture', $file =~ s/deepseek2/deepseek9/r,
     qr/cut\.gguf: general\.architecture: \\"deepseek9/],
    ['an unknown pre-tokenizer', $file =~ s/deepseek-v3/deepseek-v9/r, qr/tokenizer\.ggml\.pre: /],
    ['no GGUF', "GGML$file", qr/cut\.gguf: neither a directory nor a GGUF file/],
) {
    my ($name, $content, $cause) = @$case;
    my $broken = server(start => 0);

    open my $out, '>:raw', $cut or die "$cut: $!";
    print $out $content;
    close $out;
    $broken->write_config(model => $cut);
    my ($status, $output) = $broken->check_config;
    if ($status != 0) {
        like($output, qr/\[emerg\].*$cause.*nginx\.conf:\d+/, "$name: refused by nginx -t");
        $broken->expect(qr/\[emerg\]/);
        next;
    }
    $broken->start(ready => 0);
    my $health;
    ok(wait_until(10, sub { $health = get($broken, '/health'); $health->{body} =~ $cause }),
       "$name: /health names the cause") or diag($health->{body});
}

finish();
