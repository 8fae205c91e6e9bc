# A model that cannot be loaded: nginx runs, /health and requests say 503, the log names the cause;
# a good model after a reload serves.

use lib 't/lib';
use Moe::Test;
use File::Path qw(make_path);

# A copy of the demo model in which one file is replaced (or removed, for undef).
my $copies = 0;
sub damaged_model {
    my ($server, $file, $content) = @_;
    my $directory = "$server->{prefix}/model" . $copies++;

    make_path($directory);
    for my $path (glob "$Moe::Server::MODEL/*") {
        my ($name) = $path =~ m{([^/]+)$};
        symlink $path, "$directory/$name" or die "$directory/$name: $!" if $name ne $file;
    }
    if (defined $content) {
        open my $out, '>:raw', "$directory/$file" or die "$directory/$file: $!";
        print $out $content;
        close $out;
    }
    return $directory;
}

sub original {
    return file_content("$Moe::Server::MODEL/$_[0]");
}

# The safetensors file with its header edited as JSON.
sub edited_weights {
    my ($edit) = @_;
    my $file = original('model.safetensors');
    my $size = unpack 'Q<', $file;
    my $header = json_decode(substr $file, 8, $size);

    $edit->($header);
    my $text = json_encode($header);
    $text .= ' ' while length($text) % 8;
    return pack('Q<', length $text) . $text . substr $file, 8 + $size;
}

sub edited_json {
    my ($name, $edit) = @_;
    my $json = json_decode(original($name));

    $edit->($json);
    return json_encode($json);
}

my $norm = 'model.norm.weight';
my $weights = 'model.safetensors';
my @cases = (
    # name, file, content, what the cause must name
    ['truncated weights', $weights, substr(original($weights), 0, 5_000_000), qr/safetensors/],
    ['weights cut in the header', $weights, substr(original($weights), 0, 100), qr/safetensors/],
    ['empty weights', $weights, '', qr/safetensors/],
    ['no weights', $weights, undef, qr/safetensors/],
    ['a huge header', $weights, pack('Q<', 1 << 62) . 'x' x 100, qr/safetensors/],
    ['a wrong shape', $weights,
     edited_weights(sub { $_[0]{$norm}{shape} = [128, 2] }), qr/\Q$norm\E/],
    ['offsets outside', $weights,
     edited_weights(sub { $_[0]{$norm}{data_offsets}[1] += 1 << 40 }), qr/\Q$norm\E/],
    ['a missing tensor', $weights, edited_weights(sub { delete $_[0]{$norm} }), qr/\Q$norm\E|data/],
    ['an unknown tensor', $weights,
     edited_weights(sub { $_[0]{'model.extra'} = delete $_[0]{$norm} }),
     qr/\Q$norm\E|model\.extra/],
    ['broken tokenizer.json', 'tokenizer.json', '{"model": ', qr/tokenizer\.json/],
    ['unknown tokenizer', 'tokenizer.json',
     edited_json('tokenizer.json', sub { $_[0]{model}{type} = 'Magic' }), qr/Magic|tokenizer/],
    ['no tokenizer', 'tokenizer.json', undef, qr/tokenizer\.json/],
    ['broken config.json', 'config.json', '{', qr/config\.json/],
    ['unknown architecture', 'config.json',
     edited_json('config.json', sub { $_[0]{architectures} = ['OtherForCausalLM'];
                                      $_[0]{model_type} = 'other' }), qr/model\d+\/config\.json: .*other/],
    ['unknown scoring', 'config.json',
     edited_json('config.json', sub { $_[0]{scoring_func} = 'magic' }), qr/scoring_func|magic/],
    ['too many experts', 'config.json',
     edited_json('config.json', sub { $_[0]{num_experts_per_tok} = 1000 }),
     qr/num_experts_per_tok|experts/],
    ['broken template', 'tokenizer_config.json',
     edited_json('tokenizer_config.json', sub { $_[0]{chat_template} = '{% for %}' }),
     qr/template/],
);

my $server = server(start => 0);
$server->expect(qr/\[(?:emerg|crit)\]/);
$server->start;
my $good = essence(completion($server, long_body(5)));

for my $case (@cases) {
    my ($name, $file, $content, $cause) = @$case;
    my $broken = server(start => 0);
    $broken->write_config(model => damaged_model($broken, $file, $content));
    my ($status, $output) = $broken->check_config;
    if ($status != 0) {
        like($output, $cause, "$name: refused by nginx -t with the cause");
        like($output, qr/nginx\.conf:\d+/, "$name: with file and line");
        $broken->expect(qr/\[emerg\]/);
        next;
    }
    $broken->start(ready => 0);
    my $health;
    ok(wait_until(10, sub { $health = get($broken, '/health'); $health->{body} =~ $cause }),
       "$name: /health names the cause") or diag($health->{body});
    is($health->{status}, 503, "$name: /health");
    like($broken->log_text, qr/\[error\].*$cause/, "$name: so does the log");
    is(completion($broken, long_body(1))->{status}, 503, "$name: a request");
    ok(wait_until(5, sub { $broken->worker_pids == 2 }), "$name: nginx runs on");
    is_deeply([$broken->stop], [], "$name: stops cleanly");
}

# A model that was right at the start is exchanged for a broken one and back.
$server->write_config(model => damaged_model($server, 'tokenizer.json', '{'));
$server->signal('HUP');
ok(wait_until(10, sub { get($server, '/health')->{body} =~ /tokenizer\.json/ }),
   'a broken model after a reload: /health names the cause');
is($server->health, 503, 'a broken model after a reload: /health');
$server->write_config(model => $Moe::Server::MODEL);
$server->signal('HUP');
ok(wait_until(15, sub { $server->health == 200 }), 'the good model after another');
is(essence(completion($server, long_body(5))), $good, 'serves as before');

# An engine that failed for something that its files do not show is not kept by a reload.
my $directory = damaged_model($server, 'none', undef);
$server->write_config(model => $directory);
$server->reload;
$server->wait_ready;
rename $directory, "$directory.gone" or die "$directory: $!";
$server->expect(qr/moe-engine|moe engine/);
kill 'KILL', $server->engine_pid;
ok(wait_until(10, sub { get($server, '/health')->{body} =~ /"failed"/ }), 'a model that is gone');
rename "$directory.gone", $directory or die "$directory: $!";
$server->signal('HUP');
ok(wait_until(15, sub { $server->health == 200 }), 'the same model is back after a reload');

finish();
