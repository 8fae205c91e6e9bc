# perl -It/lib t/nightly/resume.pl [KILLS]: kills the engine KILLS (20) times under 32 streams, each
# time at a random moment; with moe_resume 1 every stream must be that of its solo run.
#
# The clients do not read before the kill, so no stream is over by then: each is hit exactly once,
# some while they wait, some in their middle, some paused.

use lib 't/lib';
use Moe::Test;
use Socket qw(SOL_SOCKET SO_RCVBUF);

use constant { STREAMS => 32, TOKENS => 380 };

my $kills = $ARGV[0] // 20;
my $server = server(model_block => 'batch_sequences 24;', location => 'moe_ping 1s; moe_resume 1;',
    http => 'send_timeout 10m;');
my @topics = qw(gzip listen root proxy_pass ssl_crl server_name keepalive_timeout sendfile);

alarm 1800;
$server->expect(qr/moe.*exited on signal/);

sub stream_body {
    my ($i) = @_;
    my %kind = (
        0 => {},
        1 => { temperature => 1, seed => $i },
        2 => { presence_penalty => 1, frequency_penalty => 1, logprobs => 1 },
        3 => { temperature => 0.7, seed => $i, top_p => 0.9, repetition_penalty => 1.1 },
    );

    return long_body(TOKENS, prompt => "Syntax: $topics[$i % @topics]" . "\nDefault:" x ($i % 5),
        stop => ['never', "\nDefault: gone"], stream_options => { include_usage => \1 },
        %{$kind{$i % 4}});
}

sub start_stream {
    my ($i) = @_;

    my $client = client($server, port => $server->{narrow_port}, receive_buffer => 2048,
        timeout => 120);

    return $client->send_request('POST', '/v1/completions',
        { model => 'demo', stream => \1, %{stream_body($i)} });
}

# All events but for ids, times and cached tokens.
sub read_stream {
    my ($client) = @_;
    my @events;

    setsockopt($client->{socket}, SOL_SOCKET, SO_RCVBUF, 1 << 20);      # now it reads
    $client->read_head;
    while (defined(my $event = $client->event)) {
        push @events, $event =~ s/"(?:id":"[^"]*"|(?:created|cached_tokens)":\d+)//gr;
    }
    $client->close;
    return join "\n", @events, $client->{complete} ? 'complete' : 'cut';
}

my @solo = map { read_stream(start_stream($_)) } 0 .. STREAMS - 1;
is(scalar(grep { !/"finish_reason":"length".*\[DONE\]\ncomplete$/s } @solo), 0, 'solo runs');

my ($hit, $longest) = (0, 0);
for my $kill (1 .. $kills) {
    $server->wait_ready(60);
    my $before = metric($server, 'moe_requests_resumed_total');
    my @clients = map { start_stream($_) } 0 .. STREAMS - 1;

    wait_until(30, sub { running($server) + waiting($server) == STREAMS })
        or die "not all streams have arrived\n";
    sleep(rand(1));
    $server->signal('KILL', $server->engine_pid);
    my $killed = time;
    $server->wait_ready(60);
    $longest = time - $killed if time - $killed > $longest;
    my @different = grep { read_stream($clients[$_]) ne $solo[$_] } 0 .. STREAMS - 1;
    is("@different", '', "kill $kill: every stream is that of its solo run");
    $hit += metric($server, 'moe_requests_resumed_total') - $before;
}
is($hit, $kills * STREAMS, sprintf('all were resumed; the longest pause was %.1f s', $longest));
finish();
