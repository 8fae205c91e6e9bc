# Several models and several servers: each location answers from its model's engine, a model that
# several servers use has one engine, and one engine's death is nothing to the other.

use lib 't/lib';
use Moe::Test;

my @ports = map { Moe::Server::free_port() } 0, 1;
my $server = server(
    second => $ports[0], third => $ports[1], http => <<"HTTP");
moe_model other $Moe::Server::MODEL {
    threads 1;
    context 256;
    alias second-name;
}

server {
    listen 127.0.0.1:%SECOND%;
    location /v1/ {
        moe_pass demo;
    }
    location /other/ {
        moe_pass second-name;
    }
}

server {
    listen 127.0.0.1:%THIRD%;
    moe_max_tokens 3;
    location / {
        moe_pass other;
    }
    location /any/ {
        moe_pass any;
    }
    location /variable/ {
        moe_pass \$arg_model;
    }
}
HTTP
my @servers = ($server, map { { port => $_ } } @ports);

ok(wait_until(20, sub { get($servers[2], '/health')->{status} == 200 }), 'all engines serve');
my $text = completion($server, long_body(10))->{json}{choices}[0]{text};

for my $case (
    # server, prefix, the body's model, status, the answer's model, tokens, the models that are told
    [0, '', 'demo', 200, 'demo', 10, ['demo']], [0, '', 'other', 404],
    [1, '', 'demo', 200, 'demo', 10, ['demo']], [1, '', 'other', 404],
    [1, '/other', 'other', 200, 'other', 10, ['other', 'second-name']],
    [1, '/other', 'second-name', 200, 'other', 10, ['other', 'second-name']],
    [1, '/other', 'demo', 404],
    [2, '', 'other', 200, 'other', 3, ['other', 'second-name']], [2, '', 'demo', 404],
    [2, '/any', 'demo', 200, 'demo', 3, ['demo', 'other', 'second-name']],
    [2, '/any', 'other', 200, 'other', 3, ['demo', 'other', 'second-name']],
    [2, '/any', 'none', 404],
) {
    my ($index, $prefix, $model, $status, $told, $tokens, $models) = @$case;
    my $answer = post($servers[$index], "$prefix/v1/completions",
                      { %{long_body(10)}, model => $model });
    my $name = "server $index, $prefix/, $model";
    is($answer->{status}, $status, "$name: status");
    if ($status != 200) {
        is($answer->{json}{error}{code}, 'model_not_found', "$name: code");
        next;
    }
    is($answer->{json}{model} =~ s/second-name/other/r, $told, "$name: model");
    is($answer->{json}{usage}{completion_tokens}, $tokens, "$name: tokens");
    is(substr($text, 0, length $answer->{json}{choices}[0]{text}),
       $answer->{json}{choices}[0]{text}, "$name: text");
    is_deeply([sort map { $_->{id} } @{get($servers[$index], "$prefix/v1/models")->{json}{data}}],
              $models, "$name: models");
}

# A variable: what it names, and a line for what it names in vain.
for my $case (['demo', ['demo']], ['any', ['demo', 'other', 'second-name']], ['none', []]) {
    my ($name, $models) = @$case;
    my $list = get($servers[2], "/variable/v1/models?model=$name")->{json}{data};

    is_deeply([sort map { $_->{id} } @$list], $models, "a variable: $name");
}
$server->expect(qr/no model "none"/);
ok(wait_until(10, sub { $server->log_text =~ /no model "none"/ }), 'a line of it in the log');
is(get($servers[2], '/variable/health?model=demo')->{status}, 200, 'a variable: /health');
is(scalar(() = $server->log_text =~ /no model "none"/g), 1, 'only one');
my @engines = grep { $_->{title} =~ /moe-engine serve/ } $server->processes;
is(scalar @engines, 2, 'one engine for each model');

# One of them is killed: its stream pauses, the other's does not even that.
my %stream = map {
    $_->[0] => hold({ narrow_port => $servers[1]{port} }, long_body(150, model => $_->[0]),
                    uri => "$_->[1]/v1/completions")
} ['demo', ''], ['other', '/other'];
$server->expect(qr/exited on signal/);
my ($supervisor) = grep { $_->{title} =~ /moe engine other/ } $server->processes;
my ($engine) = grep { $_->{ppid} == $supervisor->{pid} } $server->processes;
$server->signal('KILL', $engine->{pid});
is(essence(completion($server, long_body(10))), essence(completion($server, long_body(10))),
   'the other model serves on');
ok(collect($stream{$_})->{done}, "a stream of $_ ends well") for sort keys %stream;
$_->close for values %stream;
is(scalar(grep { $_->{pid} == $engines[0]{pid} || $_->{pid} == $engines[1]{pid} }
          $server->processes), 1, 'one engine was replaced');

finish();
