# perl -It/lib t/nightly/connections.pl [CONNECTIONS]: CONNECTIONS (10000) idle keep-alive
# connections and 200 streams: what a stream costs a worker in memory; then 32 streams: what a
# token costs the workers in CPU time.  Where the limit of open files is too low, it says so and
# takes fewer connections.

use lib 't/lib';
use Moe::Load;
use Moe::Test;
use IO::Select;

use constant {
    STREAMS => 200, STREAM_KILOBYTES => 40, UNREAD_KILOBYTES => 40,
    CPU_STREAMS => 32, CPU_TOKENS => 1500, CPU_MICROSECONDS => 10,
    SPARE => 500,       # files of the test and the server besides
};

my $connections = $ARGV[0] // 10000;
my ($limit) = file_content('/proc/self/limits') =~ /^Max open files\s+(\d+)/m;
alarm 1800;

if ($connections + STREAMS + SPARE > $limit) {
    diag("only $limit open files are allowed here: fewer connections");
    $connections = $limit - STREAMS - SPARE;
}
my $server = server(main => "worker_rlimit_nofile $limit;", connections => $limit,
    model_block => 'batch_sequences 256; queue 256; kv_cache 1g;',
    http => 'keepalive_timeout 30m; send_timeout 10m; access_log off;');


sub worker_memory {
    return (memory_line($server))[0]{workers};
}


# Reads what comes on many streams at once until each has ended; the number of bytes, and of streams
# that ended well.
sub drain {
    my (@clients) = @_;
    my %by_socket = map { fileno($_->{socket}) => $_ } @clients;
    my $select = IO::Select->new(map { $_->{socket} } @clients);
    my ($bytes, $well) = (0, 0);

    while ($select->count) {
        for my $socket ($select->can_read(60)) {
            my $client = $by_socket{fileno $socket};
            my $n = sysread($socket, my $data, 65536) // next;
            $bytes += $n;
            $client->{tail} = substr(($client->{tail} // '') . $data, -200);
            next if $n && $client->{tail} !~ /\r\n0\r\n\r\n$/;
            $select->remove($socket);
            $well++ if $client->{tail} =~ /data: \[DONE\]/;
        }
    }
    return ($bytes, $well);
}


sub start_streams {
    my ($count, $tokens, %args) = @_;

    return map {
        client($server, timeout => 60, %args)->send_request('POST', '/v1/completions',
            { model => 'demo', stream => \1, %{long_body($tokens, prompt => "Syntax: $_")} })
    } 1 .. $count;
}


# Memory of 200 streams, next to what the workers had before any ($before).
sub measure_memory {
    my ($name, $before, $most, %args) = @_;
    my @streams = start_streams(STREAMS, 600, %args);

    ok(wait_until(60, sub { running($server) == STREAMS }), "$name: all run");
    sleep(3) if %args;      # until each stands still, its buffers full
    my $during = worker_memory();
    my ($bytes, $well) = drain(@streams);
    my $after = worker_memory();

    is($well, STREAMS, "$name: all end well, $bytes bytes");
    $during = $after if $after > $during;
    cmp_ok(($during - $before) / STREAMS, '<', $most,
        sprintf('%s: %.1f KB of worker memory for a stream', $name, ($during - $before) / STREAMS));
    return;
}

drain(start_streams(16, 50));
my $empty = worker_memory();
my @idle;
my %statuses;
for (1 .. $connections) {
    my $client = client($server);
    $statuses{$client->get('/v1/models')->{status}}++;
    push @idle, $client;
}
is_deeply(\%statuses, { 200 => $connections }, "$connections idle connections");
diag(sprintf 'an idle connection: %.2f KB', (worker_memory() - $empty) / $connections);

# A stream that is not read holds what its credit lets the engine send ahead.
my $before = worker_memory();
measure_memory('streams', $before, STREAM_KILOBYTES);
measure_memory('unread streams', $before, UNREAD_KILOBYTES, port => $server->{narrow_port},
    receive_buffer => 2048);

my @again = @idle[map { int rand @idle } 1 .. 200];
is_deeply([grep { $_ != 200 } map { $_->get('/v1/models')->{status} } @again], [],
    'the idle connections are still there');
$_->close for @idle;

# CPU time at 32 streams over plain HTTP/1.1.
my @workers = $server->worker_pids;
my ($cpu, $tokens) = (cpu_seconds(@workers), metric($server, 'moe_generation_tokens_total'));
my ($bytes, $well) = drain(start_streams(CPU_STREAMS, CPU_TOKENS));
$cpu = cpu_seconds(@workers) - $cpu;
$tokens = metric($server, 'moe_generation_tokens_total') - $tokens;
is($well, CPU_STREAMS, 'CPU: all end well');
my $microseconds = 1e6 * $cpu / $tokens;
cmp_ok($microseconds, '<', CPU_MICROSECONDS,
    sprintf('CPU: %.2f us of the workers for each of %d tokens', $microseconds, $tokens));
is(scalar(() = $server->log_text =~ /\[(?:error|crit)\]/g), 0, 'no errors');
finish();
