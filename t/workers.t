# Reloads that change what stands around the engine: the number of workers, and whether the module
# is there at all.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $body = long_body(900);
my $expected = completion($server, $body)->{json}{choices}[0]{text};
my $short = essence(completion($server, long_body(10)));
my $engine = $server->engine_pid;

# More and fewer workers, under running streams.
my @held;
for my $workers (4, 1, 3, 2) {
    push @held, hold($server, $body);
    $server->write_config(workers => $workers);
    $server->reload;
    ok(wait_until(5, sub { $server->worker_pids == $workers }), "$workers workers");
    is(essence(completion($server, long_body(10))), $short, "$workers workers serve");
}
is($server->engine_pid, $engine, 'with the same engine');
for my $i (0 .. $#held) {
    my $result = collect($held[$i]);
    is($result->{text}, $expected, "stream $i: the whole text");
    ok($result->{done} && $result->{complete}, "stream $i: a proper end");
    $held[$i]->close;
}

# Without the module: its streams end well, then the engine goes; nginx serves on.
my $with = $server->{template};
my $without = <<'END';
%USER%
error_log %PREFIX%/error.log info;
pid %PREFIX%/nginx.pid;
daemon %DAEMON%;
worker_processes %WORKERS%;

events {
    worker_connections %CONNECTIONS%;
}

http {
    client_body_temp_path %PREFIX%/client_body;
    access_log %PREFIX%/access.log;

    server {
        listen 127.0.0.1:%PORT%;
        listen 127.0.0.1:%NARROW_PORT% sndbuf=4k;
        return 200 plain;
    }
}
END

sub engines {
    return grep { $_->{title} =~ /moe engine|moe-engine/ } $server->processes;
}

for my $round (1, 2) {
    my $stream = hold($server, $body);
    $server->write_config(template => $without);
    $server->reload;
    is(get($server, '/v1/models')->{body}, 'plain', "round $round: without the module");
    my $result = collect($stream);
    is($result->{text}, $expected, "round $round: a stream of before is whole");
    ok($result->{done} && $result->{complete}, "round $round: and ends properly");
    $stream->close;
    ok(wait_until(10, sub { !engines() }), "round $round: the engine is gone");
    $server->reload;
    is(get($server, '/v1/models')->{body}, 'plain', "round $round: another reload without it");

    $server->write_config(template => $with);
    $server->reload;
    ok($server->wait_ready, "round $round: the module is back");
    is(essence(completion($server, long_body(10))), $short, "round $round: and serves");
    is(scalar engines(), 2, "round $round: one engine and its supervisor");
}

# Without models, but with the module.
$server->write_config(template => $without =~ s/^/load_module %BUILD%\/ngx_http_moe_module.so;\n/r);
$server->reload;
ok(wait_until(10, sub { !engines() }), 'the module without a model: no engine');
$server->write_config(template => $with);
$server->reload;
ok($server->wait_ready, 'a model again: an engine');
is(essence(completion($server, long_body(10))), $short, 'which serves');

finish();
