# What the system runs out of: descriptors of a worker, room for the log, the engine's right to read
# its model.  What cannot be served is told, and afterwards all is as before.

use lib 't/lib';
use Moe::Test;
use File::Temp qw(tempdir);

my $short = long_body(5);

# Descriptors: connections wait in the kernel until some are free again.
my $server = server(workers => 1, main => 'worker_rlimit_nofile 20;');
my $expected = essence(completion($server, $short));
$server->expect(qr/failed \(24: Too many open files\)/, qr/exited on signal 9/);
my @clients = map { client($server) } 1 .. 30;
$_->send_request('POST', '/v1/completions', { model => 'demo', %$short,
    padding => 'x' x 100_000 }) for @clients;
ok(wait_until(5, sub { $server->log_text =~ /\(24: / }), 'descriptors run out');
$server->signal('KILL', $server->engine_pid);
for my $client (@clients) {
    my $answer = $client->read_answer;
    ok($answer->{status} == 200 ? essence($answer) eq $expected
                                : $answer->{status} =~ /^50[03]$/ && $answer->{json}{error},
       "descriptors: an answer, $answer->{status}");
    $client->close;
}
is(essence(completion($server, $short)), $expected, 'descriptors: and all is well again');

# Only root can take rights away from the engine, and mount.
if ($> == 0) {
    my ($model, $public, $disk) = map { tempdir(TMPDIR => 1, CLEANUP => 1) } 1 .. 3;
    system("cp $Moe::Server::MODEL/* $model && cp $Moe::Server::BUILD/moe-engine $public") == 0
        or die "cp failed\n";
    chmod 0700, $model;
    chmod 0755, $public;
    my $other = server(ready => 0, model => $model, engine => "$public/moe-engine",
        http => 'moe_engine_user nobody;');
    my $health;
    ok(wait_until(10, sub { $health = get($other, '/health')->{json};
                            $health->{status} eq 'failed' }), 'rights: the model is not read');
    like($health->{message}, qr{\Q$model\E(?:/\S+)?: Permission denied}, 'rights: /health says why');
    chmod 0755, $model;
    $other->reload;
    ok($other->wait_ready, 'rights: given, they serve after a reload');

    SKIP: {
        skip 'no mount here', 5 if system("mount -t tmpfs -o size=64k,mode=777 moe $disk 2>&1") != 0;
        my $full = server(main => "error_log $disk/error.log debug;");
        system("cat /dev/zero >$disk/rest 2>&1");
        is(essence(completion($full, $short)), $expected, 'a full disk: an answer');
        ok(collect_all($full, '/v1/completions', long_body(100))->{done}, 'a full disk: a stream');
        $full->signal('KILL', $full->engine_pid);
        is(essence(completion($full, $short)), $expected, 'a full disk: another engine');
        $full->reload;
        is(essence(completion($full, $short)), $expected, 'a full disk: a reload');
        is_deeply([$full->stop], [], 'a full disk: an end');
        system("umount $disk");
    }
}

finish();
