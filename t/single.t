# master_process off, for development: one process serves, its engine is its child, and nothing of
# it is left.

use lib 't/lib';
use Moe::Test;

my $server = server(main => 'master_process off;');
my $body = long_body(300);
my $whole = completion($server, $body);
is($whole->{status}, 200, 'an answer');
my $result = collect_all($server, '/v1/completions', $body);
is($result->{text}, $whole->{json}{choices}[0]{text}, 'a stream');
ok($result->{done} && $result->{complete}, 'and its end');
is(scalar(grep { $_->{title} =~ /^nginx: (?:worker|master)/ } $server->processes), 0,
   'there is no master and no worker');

my $engine = $server->engine_pid;
$server->expect(qr/exited on signal/);
$server->signal('KILL', $engine);
is(essence(completion($server, $body)), essence($whole), 'the engine is replaced when it dies');
isnt($server->engine_pid, $engine, 'by another one');

$server->signal('QUIT');
ok($server->gone(10), 'QUIT ends all of it');

finish();
