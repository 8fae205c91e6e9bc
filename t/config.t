# Faults in the configuration are found by nginx -t, with file and line.

use lib 't/lib';
use File::Temp qw(tempdir);
use Moe::Test;

my $server = server(start => 0);
my ($status, $output) = $server->check_config;
is($status, 0, 'the usual configuration is right') or diag($output);

# where it goes, the text, what is said about it
my @cases = (
    ['model_block', 'no_such_thing 5;', qr/"no_such_thing"/],
    ['model_block', 'threads 2;', qr/"threads".*duplicate|duplicate.*"threads"/],
    ['model_block', 'batch_tokens many;', qr/"many"|batch_tokens/],
    ['model_block', 'batch_tokens -1;', qr/"-1"|batch_tokens/],
    ['model_block', 'batch_tokens;', qr/batch_tokens/],
    ['model_block', 'batch_sequences 0;', qr/batch_sequences|"0"/],
    ['model_block', 'batch_sequences 99999999999999999999;', qr/batch_sequences|"9{20}"/],
    ['model_block', 'kv_cache lots;', qr/"lots"|kv_cache/],
    ['model_block', 'step_time soon;', qr/"soon"|step_time/],
    ['model_block', 'step_time 11m;', qr/"11m" of "step_time".*between 1ms and 10m/],
    ['model_block', 'batch_delay -1;', qr/"-1" of "batch_delay".*between 0ms and 10m/],
    ['model_block', 'ranks 0;', qr/"0" of "ranks".*between 1 and 1024/],
    ['model_block', 'ranks 1025;', qr/"1025" of "ranks".*between 1 and 1024/],
    ['model_block', 'tensor_parallel 0;', qr/"0" of "tensor_parallel".*between 1 and 1024/],
    ['model_block', 'tensor_parallel 2;',
     qr/"tensor_parallel" of model "demo" is 2, which does not divide its "ranks": 1/],
    ['model_block', 'ranks 3;', qr/"ranks" of model "demo" is 3, but "threads" is 1: each rank/],
    ['model_block', 'redundant_experts 65537;',
     qr/"65537" of "redundant_experts".*between 0 and 65536/],
    ['model_block', 'redundant_experts 4;',
     qr/"redundant_experts" of model "demo" is 4, but there is one rank only/],
    ['model_block', 'peer_timeout 9ms;', qr/"9ms" of "peer_timeout".*between 10ms and 1h/],
    ['model_block', 'kv_type f16;', qr/"f16" of "kv_type".* "bf16", "f32" or "q8_0"/],
    ['model_block', 'exchange q8_0;', qr/"q8_0" of "exchange".* "f32", "bf16", "int8" or "fp8"/],
    ['model_block', 'overlap on;', qr/"on" of "overlap".* "off", "shared" or "two_batch"/],
    ['model_block', 'prefix_cache maybe;', qr/"maybe" of "prefix_cache".* "on" or "off"/],
    ['model_block', 'prefix_cache on; prefix_cache off;', qr/duplicate.*"prefix_cache"/],
    ['model_block', 'chat_template none.jinja;',
     qr{"chat_template" of model "demo": .*"/.*/none.jinja" failed \(2: No such file}],
    ['model_block', 'chat_template /;', qr{"chat_template" of model "demo": "/" is not a file}],
    ['model_block', 'chat_template /etc/passwd; chat_template /etc/passwd;',
     qr/duplicate.*"chat_template"/],
    ['model_block', 'tool_parser qwen;', qr/"qwen" of "tool_parser".* "qwen3_coder" or "none"/],
    ['model_block', 'reasoning_parser on;', qr/"reasoning_parser".* "harmony", "think" or "none"/],
    ['model_block', 'tool_parser glm; reasoning_parser harmony;',
     qr/"tool_parser glm".*does not go with "reasoning_parser harmony"/],
    ['model_block', 'queue 1 2;', qr/queue/],
    ['model_block', 'queue_timeout x;', qr/"x"|queue_timeout/],
    ['model_block', 'queue_timeout 25h;', qr/"25h" of "queue_timeout".*between 1ms and 1d/],
    ['model_block', 'kv_cache 5k;', qr/"5k" of "kv_cache".*between 64k and 65536g/],
    ['model_block', 'device cpu;', qr/"device".*duplicate|duplicate.*"device"/],
    ['model_block', 'alias demo;', qr/demo/],
    ['http', "moe_model demo $Moe::Server::MODEL { }", qr/demo/],
    ['http', "moe_model other { }", qr/moe_model/],
    ['http', 'moe_model other /no/such/model { }', qr{/no/such/model}],
    ['http', "moe_model other $Moe::Server::MODEL { device tpu; }", qr/tpu/],
    ['http', 'moe_engine_path /no/such/engine;', qr/moe_engine_path|no.such.engine/],
    ['server', 'location /x { moe_pass no_such_model; }', qr/no_such_model/],
    ['server', 'location /x { moe_pass; }', qr/moe_pass/],
    ['server', 'location /x { moe_pass demo; moe_pass demo; }', qr/moe_pass.*duplicate/],
    ['server', 'moe_pass demo;', qr/moe_pass.*not allowed/],
    ['server', 'location /x { moe_pass demo; moe_max_tokens x; }', qr/moe_max_tokens|"x"/],
    ['server', 'location /x { moe_pass demo; moe_max_tokens -1; }', qr/moe_max_tokens|"-1"/],
    ['server', 'location /x { moe_pass demo; moe_timeout 5s; }', qr/moe_timeout|"5s"/],
    ['server', 'location /x { moe_pass demo; moe_timeout first=x; }', qr/first=x/],
    ['server', 'location /x { moe_pass demo; moe_timeout last=5s; }', qr/last=5s/],
    ['server', 'location /x { moe_pass demo; moe_ping x; }', qr/moe_ping|"x"/],
    ['server', 'location /x { moe_pass demo; moe_resume x; }', qr/"moe_resume"/],
    ['server', 'location /x { moe_pass demo; moe_resume 1001; }', qr/1000/],
    ['server', 'location /x { moe_pass demo; moe_priority -1; }', qr/moe_priority|"-1"/],
    ['server', 'location /x { moe_pass demo; moe_priority 1000001; }', qr/1000000/],
    ['server', 'moe_cache_salt a; moe_cache_salt b;', qr/moe_cache_salt.*duplicate/],
    ['server', 'moe_api_keys off; moe_api_keys off;', qr/moe_api_keys.*duplicate/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m;', qr/moe_limit_tokens_zone/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a rate=1t/s;', qr/zone=a/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=:1m rate=1t/s;', qr/zone=:1m/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:x rate=1t/s;', qr/zone=a:x/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1k rate=1t/s;', qr/too small/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m zone=b:1m;', qr/zone=b:1m/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=1t/s rate=1t/s;', qr/invalid number/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=t/s;', qr/rate=t/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=0t/s;', qr/rate=0t/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=-1t/s;', qr/rate=-1t/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=1r/s;', qr/rate=1r/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=1;', qr/rate=1"/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=1000000001t/m;', qr/rate=10+1t/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=9999999999999999999999t/m;', qr/rate=9+t/],
    ['http', 'moe_limit_tokens_zone $arg_a zone=a:1m rate=1t/m;'
        . ' moe_limit_tokens_zone $arg_b zone=a:1m rate=1t/m;', qr/already bound to key "\$arg_a"/],
    ['http', 'limit_req_zone $arg_a zone=a:1m rate=1r/m; moe_limit_tokens zone=a;',
     qr/"a" is already declared for a different use/],
    ['server', 'location /x { moe_limit_tokens burst=5; }', qr/must have "zone"/],
    ['server', 'location /x { moe_limit_tokens zone=none; }', qr/unknown zone "none"/],
    ['server', 'moe_limit_tokens zone=none;', qr/unknown zone "none"/],
    ['server', 'location /x { moe_limit_tokens zone=a burst=0; }', qr/burst=0/],
    ['server', 'location /x { moe_limit_tokens zone=a burst=x; }', qr/burst=x/],
    ['server', 'location /x { moe_limit_tokens zone=a nodelay; }', qr/nodelay/],
    ['server', 'location /x { moe_limit_tokens zone=a; moe_limit_tokens zone=a; }',
     qr/moe_limit_tokens.*duplicate/],
    ['server', 'location /x { moe_status on; }', qr/moe_status/],
    ['server', 'location /x { moe_metrics all; }', qr/"all"/],
    ['server', 'location /x { moe_proxy_errors maybe; }', qr/"maybe"/],
    ['main', 'moe_engine_path /bin/true;', qr/moe_engine_path.*not allowed/],
);
for my $case (@cases) {
    my ($place, $text, $pattern) = @$case;
    my $broken = server(start => 0, $place => $text);
    my ($status, $output) = $broken->check_config;
    my ($fault) = $output =~ /^(.*\[emerg\].*)$/m;

    is($status, 1, "$text: refused");
    like($fault, $pattern, "$text: named");
    like($fault, qr{ in \Q$broken->{prefix}\E/nginx\.conf:\d+$}, "$text: with file and line");
    $broken->expect(qr/\[emerg\]/);
}

# Everything that is documented is accepted.  The engine's user must be able to reach the engine and
# the model, wherever the project lies.
my $public = tempdir('moe-test-XXXXXX', TMPDIR => 1, CLEANUP => 1);
chmod 0755, $public;
system('cp', '-r', "$Moe::Server::BUILD/moe-engine", $Moe::Server::MODEL, $public) == 0
    or die "cp failed\n";
my $full = server(engine => "$public/moe-engine", model => "$public/nginx-directives-moe",
    http => 'moe_engine_user nobody;
        moe_limit_tokens_zone $moe_key_id$arg_x zone=tokens:1m rate=100t/s;', model_block => <<'END', location => <<'REST');
kv_cache 64m;
batch_tokens 256;
batch_sequences 16;
batch_delay 2ms;
step_time 20ms;
kv_type bf16;
exchange int8;
overlap two_batch;
prefix_cache on;
tool_parser hermes;
reasoning_parser think;
queue 32;
queue_timeout 30s;
alias gpt-4o-mini nginx-helper;
END
moe_priority 1;
moe_cache_salt $arg_salt;
moe_limit_tokens zone=tokens burst=100000;
moe_max_tokens 100;
moe_timeout first=30s total=5m;
moe_ping 5s;
moe_resume 2;
REST
is(completion($full, { prompt => 'a', max_tokens => 2, model => $_ })->{status}, 200, "model $_")
    for qw(demo gpt-4o-mini nginx-helper);
like($full->log_text, qr/cache of \d+ tokens in bf16/, 'kv_type');
is(get($full, '/v1/models/gpt-4o-mini')->{status}, 200, 'the alias is a model');

# So is conf/nginx.conf.sample, given what it names.
my $sample = server(start => 0, template => sample('nginx.conf.sample',
    '/usr/local/sbin/moe-engine' => '%ENGINE%',
    '/srv/models/DeepSeek-V2-Lite-Chat' => '%MODEL%',
    '/etc/nginx/tls/fullchain.pem' => '%PREFIX%/cert.pem',
    '/etc/nginx/tls/privkey.pem' => '%PREFIX%/key.pem',
    '/etc/nginx/moe.keys' => '%PREFIX%/moe.keys',
    'listen 443' => 'listen 127.0.0.1:%PORT%',
    'listen 8080' => 'listen 127.0.0.1:%NARROW_PORT%',
));
$sample->make_certificate;
$sample->write_file('moe.keys', 'team:' . 'a' x 64 . "\n");
($status, $output) = $sample->check_config;
is($status, 0, 'the sample is right') or diag($output);

# Inheritance as in nginx: values from the server, the location's own win.
my $nested = server(server => <<'END');
moe_max_tokens 3;
location /own/ {
    moe_pass demo;
    moe_max_tokens 5;
}
location /off/ {
    moe_pass demo;
    moe_max_tokens 0;
}
END
is(post($nested, $_->[0], { model => 'demo', %{long_body(9)} })->{json}{usage}{completion_tokens},
   $_->[1], "moe_max_tokens for $_->[0]")
    for ['/v1/completions', 3], ['/own/v1/completions', 5], ['/off/v1/completions', 9];

# nginx -T prints all of it.
my ($printed, $dump) = $full->check_config('-T');
is($printed, 0, 'nginx -T');
like($dump, qr/^\s*\Q$_\E$/m, "nginx -T: $_")
    for 'moe_engine_user nobody;', 'queue_timeout 30s;', 'moe_timeout first=30s total=5m;',
        'moe_pass demo;';

# moe_pass with a variable, and by the name in the body.
my $other = server(http => "moe_model other $Moe::Server::MODEL { threads 1; context 256; }",
    server => <<'END');
location /any/ {
    moe_pass any;
}

location /named/ {
    set $chosen $arg_m;
    moe_pass $chosen;
}
END
wait_until(10, sub { post($other, '/any/v1/completions',
    { model => 'other', prompt => 'a', max_tokens => 1 })->{status} == 200 });
for my $name (qw(demo other)) {
    my $answer = post($other, '/any/v1/completions', { model => $name, %{long_body(3)} });
    is($answer->{json}{model}, $name, "moe_pass any: $name");
    $answer = post($other, "/named/v1/completions?m=$name", { model => $name, %{long_body(3)} });
    is($answer->{json}{model}, $name, "moe_pass \$variable: $name");
}
is(post($other, '/any/v1/completions', { model => 'none', %{long_body(3)} })->{status}, 404,
   'moe_pass any: unknown');
for my $case (
    # the variable, the body's model, status, code, a part of the message
    ['other', undef, 200], ['any', 'other', 200], ['none', undef, 404, 'model_not_found', '"none"'],
    ['none', 'demo', 404, 'model_not_found', '"demo"'], ['any', undef, 400, undef, 'required'],
    ['', undef, 400, undef, 'required'],
) {
    my ($chosen, $model, $status, $code, $message) = (@$case, ('') x 2);
    my $answer = post($other, "/named/v1/completions?m=$chosen",
        { ($model ? (model => $model) : ()), %{long_body(1)} });
    my $error = ($answer->{json} // {})->{error} // {};
    my $name = "moe_pass \$variable: \"$chosen\", model " . ($model // 'absent');
    is($answer->{status}, $status, $name);
    is($error->{code} // '', $code // '', "$name: code");
    like($error->{message} // '', qr/\Q$message\E/, "$name: message");
}
is_deeply([sort map { $_->{id} } @{get($other, '/any/v1/models')->{json}{data}}],
          [qw(demo other)], 'moe_pass any: both are listed');

finish();
