# moe_proxy_errors: what clients of a balancer get when the node that answers goes away, at every
# place of a stream; and that nothing else is changed.

use lib 't/lib';
use IO::Socket::INET;
use Moe::HTTP2;
use Moe::Test;

# A node that sends what the URI's number asks for, piece by piece, and closes.
my $listen = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1') or die "listen: $!";
my $server = server(ready => 0, node => $listen->sockport, h2_port => Moe::Server::free_port(),
                    http => 'moe_proxy_errors on;', server => <<'END');
listen 127.0.0.1:%H2_PORT% http2;
proxy_http_version 1.1;
location /v1/ { proxy_pass http://127.0.0.1:%NODE%; proxy_buffering off; }
location /off/ { proxy_pass http://127.0.0.1:%NODE%; proxy_buffering off; moe_proxy_errors off; }
location /buffered/ { proxy_pass http://127.0.0.1:%NODE%; }
location /silent/ {
    proxy_pass http://127.0.0.1:%NODE%;
    proxy_buffering off;
    proxy_read_timeout 200ms;
}
END

my @events = map { qq(data: {"n":$_}\n\n) } 1 .. 3;
my @crlf = map { s/\n/\r\n/gr } @events;
my $long = 'data: ' . 'x' x 40_000 . "\n\n";
my $error = qr/data: (\{"error":\{.*"code":"service_unavailable"\}\})\n\ndata: \[DONE\]\n\n/;
my $type = 'text/event-stream';

# place, content type, pieces of the body, whether the node ends it as it should, what the client
# has before the error, whether there is one
my @cases = (
    ['/v1/', $type, [@events], 1, join('', @events), 0],
    ['/v1/', $type, [@events], 0, join('', @events), 1],
    ['/v1/', $type, [join '', @events], 0, join('', @events), 1],
    ['/v1/', $type, [], 0, '', 1],
    ['/v1/', $type, [split //, join '', @events], 1, join('', @events), 0],
    ['/v1/', $type, [split //, join '', @events, 'data: {"n"'], 0, join('', @events), 1],
    ['/v1/', $type, [@events, 'data: {'], 0, join('', @events), 1],
    ['/v1/', $type, [@events, "data: {}\n"], 0, join('', @events), 1],
    ['/v1/', $type, ["data: 1\n\ndata", ": 2\n\nda"], 0, "data: 1\n\ndata: 2\n\n", 1],
    ['/v1/', $type, ["data: 1\n", "\n", "data: 2\n", "\n"], 0, "data: 1\n\ndata: 2\n\n", 1],
    ['/v1/', $type, [@crlf, "data: {}\r\n\r"], 0, join('', @crlf), 1],
    ['/v1/', $type, [split //, join '', @crlf, "data: {}\r"], 0, join('', @crlf), 1],
    ['/v1/', $type, ['data: 1'], 1, 'data: 1', 0],
    ['/v1/', "$type; charset=utf-8", [@events], 0, join('', @events), 1],
    ['/v1/', $type, [$long, $events[0]], 1, $long . $events[0], 0],
    ['/v1/', $type, [$long, 'data'], 0, $long, 1],
    ['/v1/', $type, [unpack '(A1000)*', $long], 1, $long =~ s/\n//gr, 0],
    # What is too long to be kept back has gone: no event can follow.
    ['/v1/', $type, [$events[0], substr $long, 0, 30_000], 0, $events[0] . substr($long, 0, 30_000),
     0],
    ['/v1/', 'application/json', ['{"a":'], 0, '{"a":', 0],
    ['/off/', $type, [@events], 0, join('', @events), 0],
    ['/buffered/', $type, [@events], 0, join('', @events), 0],
    ['/silent/', $type, [@events, undef], 0, join('', @events), 1],
);

sub answer {
    my ($connection, $case) = @_;
    my (undef, $content_type, $pieces, $ends) = @$case;

    $connection->autoflush(1);
    print $connection "HTTP/1.1 200 OK\r\nContent-Type: $content_type\r\n"
        . "Transfer-Encoding: chunked\r\n\r\n";
    for my $piece (@$pieces) {
        return sysread $connection, my $rest, 1 unless defined $piece;
        printf $connection "%x\r\n%s\r\n", length $piece, $piece;
        sleep(0.001);
    }
    print $connection "0\r\n\r\n" if $ends;
    return;
}

my $node = fork() // die "fork: $!";
if ($node == 0) {
    while (my $connection = $listen->accept) {
        my $head = '';
        $head .= <$connection> // last until $head =~ /\r\n\r\n$/;
        answer($connection, $cases[$1]) if $head =~ /^GET \S*?(\d+) /;
        close $connection;
    }
    POSIX::_exit(0);
}
close $listen;

for my $i (0 .. $#cases) {
    my ($place, $content_type, $pieces, $ends, $before, $has_error) = @{$cases[$i]};
    my $answer = get($server, "$place$i");
    my $name = sprintf '%s%d, %d pieces', $place, $i, scalar @$pieces;

    is($answer->{status}, 200, $name);
    is($answer->{complete} ? 1 : 0, $ends || $has_error, "$name: the end");
    my $text = $answer->{body};
    is($text =~ s/$error\z// ? 1 : 0, $has_error, "$name: the error");
    is($text, $before, "$name: what came before");
}

# Over HTTP/2, too.
my $h2 = Moe::HTTP2->new(port => $server->{h2_port});
for my $i (1, 6) {
    my $answer = $h2->answer($h2->send_request('GET', "/v1/$i"));
    my $text = $answer->{body};
    ok($text =~ s/$error\z//, "HTTP/2, $i: the error");
    is($text, $cases[$i][4], "HTTP/2, $i: what came before");
}
$h2->close;
kill 'KILL', $node;
waitpid $node, 0;

finish();
