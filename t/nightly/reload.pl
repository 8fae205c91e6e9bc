# perl -It/lib t/nightly/reload.pl [RELOADS]: RELOADS (100) reloads while 32 clients stream without
# a pause: no request fails, no stream is cut, the engine is the same process, nothing grows.

use lib 't/lib';
use Moe::Load;
use Moe::Test;

use constant { STREAMS => 32, TOKENS => 300, GROWTH => 1.02 };

my $reloads = $ARGV[0] // 100;
my $server = server();
my $engine = $server->engine_pid;
my @topics = qw(gzip listen root proxy_pass ssl_crl server_name keepalive_timeout sendfile);

alarm 3600;

sub topic_stream {
    my ($topic) = @_;
    my $client = stream($server, '/v1/completions',
        long_body(TOKENS, prompt => "Syntax: $topic", temperature => 1, seed => 5),
        client => { timeout => 120 });
    my $essence = json_encode(stream_essence($client));

    $client->close;
    return "$client->{head}{status} $essence";
}

my %solo = map { $_ => topic_stream($_) } @topics;
is(scalar(grep { !/\[DONE\]/ || !/"complete":1/ } values %solo), 0, 'solo runs');


sub load {
    my ($during) = @_;
    my $load = start_clients($server, STREAMS, sub {
        my $topic = $topics[rand @topics];
        my $got = topic_stream($topic);
        return { kind => $got eq $solo{$topic} ? 'same' : substr $got, -300 };
    });

    $during->();
    return stop_clients($load);
}

# Memory is compared between workers that have served alike.
sub settled_memory {
    $server->reload;
    load(sub { sleep(4) });
    my ($memory, $line) = memory_line($server);
    diag("memory: $line");
    return $memory;
}

sub reload_under_load {
    my ($times) = @_;

    return load(sub {
        for (1 .. $times) {
            $server->reload;
            sleep(rand(0.5));
        }
    });
}

# The first ones fill the engine's caches and the heaps.
reload_under_load(10);
my $before = settled_memory();
my @results = reload_under_load($reloads);
my @bad = grep { ($_->{kind} // '') ne 'same' } @results;
is(scalar @bad, 0, @results . " streams during $reloads reloads, all like their solo runs")
    or diag(json_encode([splice @bad, 0, 3]));
is($server->engine_pid, $engine, 'the engine is the same');
ok(wait_until(20, sub { !grep { $_->{title} =~ /shutting down/ } $server->processes }),
   'the former workers are gone');
my $after = settled_memory();
for my $who (sort keys %$before) {
    cmp_ok($after->{$who}, '<=', $before->{$who} * GROWTH, sprintf('%s: %+.2f %%', $who,
        100 * ($after->{$who} / $before->{$who} - 1)));
}
ok(idle($server), 'idle');
finish();
