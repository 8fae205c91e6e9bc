# The load generator (t/bench/load): against the real server, and against a scripted one that cuts,
# breaks and ends its answers in every way.

use lib 't/lib';
use Moe::Test;
use Socket;

my $greedy = '{"temperature":0}';
my @scripted;       # processes of scripted servers


# Runs it: {status, json, output}; what goes wrong is in the output, too.
sub load {
    my (@arguments) = @_;
    my $pid = open(my $out, '-|') // die "fork: $!";

    if ($pid == 0) {
        open STDERR, '>&', \*STDOUT;
        exec "$Moe::Server::BUILD/load", @arguments or POSIX::_exit(127);
    }
    local $/;
    my $output = <$out>;
    close $out;
    my ($text) = $output =~ /^(\{.*\})/ms;
    return { status => $? >> 8, output => $output, json => $text ? json_decode($text) : {} };
}


# ---- a server that says what it is told ----

# Bytes of a request, or nothing at the connection's end.
sub read_request {
    my ($socket) = @_;
    my $request = '';

    while ($request !~ /\r\n\r\n/) {
        sysread($socket, $request, 65536, length $request) or return;
    }
    my ($length) = $request =~ /^Content-Length: (\d+)\r$/m;
    my $size = index($request, "\r\n\r\n") + 4 + $length;
    while (length $request < $size) {
        sysread($socket, $request, 65536, length $request) or return;
    }
    return $request;
}


# Starts a server; $answer->(number of the request, request) says which pieces to send; the last one
# may be undef, which closes the connection.  Connections are served one after the other.  The URL.
sub scripted {
    my ($answer) = @_;
    my $port = Moe::Server::free_port();

    socket(my $listener, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
    setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, 1);
    bind($listener, pack_sockaddr_in($port, INADDR_LOOPBACK)) or die "bind: $!";
    listen($listener, 100) or die "listen: $!";
    my $pid = fork() // die "fork: $!";
    if ($pid == 0) {
        my $number = 0;
        while (accept(my $socket, $listener)) {
            setsockopt($socket, Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1);
            connection: while (defined(my $request = read_request($socket))) {
                for my $piece ($answer->($number++, $request)) {
                    last connection unless defined $piece;
                    syswrite $socket, $piece;
                    sleep(0.0005) if length $piece < 20;    # or they would be sent as one
                }
            }
        }
        POSIX::_exit(0);
    }
    push @scripted, $pid;
    return "http://127.0.0.1:$port/v1/completions";
}


END {
    local $?;
    kill 'KILL', @scripted;
    waitpid $_, 0 for @scripted;
}


sub event {
    my ($text) = @_;

    return 'data: ' . json_encode({ choices => [{ index => 0, text => $text }] }) . "\n\n";
}

my $usage = 'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}' . "\n\n";
my $events = ": ping\n\n" . event('Größe, ') . event('') . event("zwei\nZeilen") . $usage
    . "data: [DONE]\n\n";
utf8::encode($events) if utf8::is_utf8($events);
my $crlf = $events =~ s/\n/\r\n/gr;
my $cr = $events =~ s/\n/\r/gr;
my $others = "event: message\nid: 1\nretry: 10\ndata\n\n" . $events =~ s/data: /data:/gr;
my $lines = $events =~ s/"choices"/\ndata: "choices"/gr;
my $head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
my $chunked = $head . "Transfer-Encoding: chunked\r\n\r\n";
my $whole = json_encode({ choices => [{ index => 0, text => 'whole', finish_reason => 'stop' }],
                          usage => { prompt_tokens => 3, completion_tokens => 7 } });


sub chunks {
    my ($size, $body) = @_;

    return map { sprintf("%x;name=value\r\n%s\r\n", length, $_) } unpack "(a$size)*", $body;
}


sub bytes {
    return split //, join '', @_;
}

# Answers that are whole, however they come: (name, pieces, events with text).
for my $case (
    ['a chunk an event', [$chunked, chunks(50, $events), "0\r\n\r\n"], 2],
    ['byte by byte', [bytes($chunked, chunks(7, $events), "0\r\nX-Trailer: 1\r\n\r\n")], 2],
    ['all at once', [join '', $chunked, chunks(1000, $events), "0\r\n\r\n"], 2],
    ['CR LF, chunks of one byte', [$chunked, chunks(1, $crlf), "0\r\n\r\n"], 2],
    ['CR', [$chunked, bytes(chunks(9, $cr)), "0\r\n\r\n"], 2],
    ['other fields', [$chunked, chunks(13, $others), "0\r\n\r\n"], 2],
    ['several data lines', [$chunked, chunks(13, $lines), "0\r\n\r\n"], 2],
    ['several data lines, CR LF', [$chunked, chunks(13, $lines =~ s/\n/\r\n/gr), "0\r\n\r\n"], 2],
    ['a length', [$head . 'Content-Length: ' . length($events) . "\r\n\r\n", $events], 2],
    ['a head with LF only', [bytes($chunked =~ s/\r//gr), chunks(9, $events), "0\n\n"], 2],
    ['until the end', ["HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", $events,
                       undef], 2],
    ['an announcement before it', ["HTTP/1.1 100 Continue\r\n\r\n", $chunked, chunks(50, $events),
                                   "0\r\n\r\n"], 2],
    ['one piece', ["HTTP/1.1 200 OK\r\ncontent-length: " . length($whole) . "\r\n\r\n", $whole], 1],
    ['Connection: close', ["HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
                           . length($whole) . "\r\n\r\n", $whole, undef], 1],
    ['closed without notice', ["HTTP/1.1 200 OK\r\nContent-Length: " . length($whole) . "\r\n\r\n",
                               $whole, undef], 1],
) {
    my ($name, $pieces, $n) = @$case;
    my $url = scripted(sub { return @$pieces });
    my $result = load('--json', '--requests', 3, '--timeout', 20, '--verify', '--body', $greedy,
        $url);

    is($result->{status}, 0, "$name: status") or diag($result->{output});
    is_deeply([@{$result->{json}}{qw(requests failed events prompt_tokens completion_tokens)}],
              [3, 0, 3 * $n, 9, 21], "$name: all of it") or diag($result->{output});
    is_deeply($result->{json}{verify}, { compared => 3, different => 0, unknown => 0 },
              "$name: compared");
}

# Answers that are not: (name, pieces, kind of the error).
my $error = '{"error":{"type":"rate_limit_exceeded","message":"later"}}';
for my $case (
    ['status 429', ["HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: " . length($error)
             . "\r\n\r\n$error"], 'http 429 rate_limit_exceeded'],
    ['500 without a word', ["HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"], 'http 500'],
    ['no HTTP', ["SSH-2.0-OpenSSH\r\n", undef], 'bad answer'],
    ['an endless head', [$head, ("X-Long: " . 'x' x 1000 . "\r\n") x 100, undef], 'bad answer'],
    ['an endless line', ['HTTP/1.1 200 ' . 'x' x 20000, undef], 'bad answer'],
    ['two framings', [$chunked =~ s/\r\n\r\n/\r\nContent-Length: 5\r\n\r\n/r, undef], 'bad answer'],
    ['a bad length', [$head . "Content-Length: 5x\r\n\r\n", undef], 'bad answer'],
    ['two lengths', [$head . "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", undef],
     'bad answer'],
    ['a bad chunk size', [$chunked, "5g\r\n", undef], 'bad answer'],
    ['a huge chunk', [$chunked, "ffffffffffffffff\r\n", undef], 'bad answer'],
    ['a chunk that is too long', [$chunked, "2\r\nabc\r\n", undef], 'bad answer'],
    ['no JSON', [$chunked, chunks(99, "data: {\"choices\n\n"), undef], 'bad answer'],
    ['events after the end', [$chunked, chunks(99, $events . event('more')), "0\r\n\r\n"],
     'bad answer'],
    ['an error event', [$chunked, chunks(99, event('a') . "data: $error\n\ndata: [DONE]\n\n"),
                        "0\r\n\r\n"], 'error event rate_limit_exceeded'],
    ['an error with a strange type', ["HTTP/1.1 400 No\r\nContent-Length: 37\r\n\r\n"
        . '{"error":{"type":"a\u001b[1m\u00e9"}}' ], 'http 400 a?[1m??'],
    ['cut off between events', [$chunked, chunks(99, event('a')), "0\r\n\r\n"], 'cut off'],
    ['cut off within a chunk', [$chunked, "ff\r\nda", undef], 'cut off'],
    ['closed at once', [undef], 'closed without an answer'],
    ['silent', [$chunked, chunks(99, event('a'))], 'timeout'],
) {
    my ($name, $pieces, $kind) = @$case;
    my $url = scripted(sub { return @$pieces });
    my $result = load('--json', '--requests', 2, '--timeout', 0.3, $url);

    is($result->{status}, 1, "$name: status") or diag($result->{output});
    is_deeply($result->{json}{errors}, { $kind => 2 }, "$name: kind") or diag($result->{output});
}

# A kept connection that is closed when the next request comes: it is sent again.
my $closing = scripted(sub {
    return ($_[0] % 2 ? undef : "HTTP/1.1 200 OK\r\nContent-Length: " . length($whole)
            . "\r\n\r\n$whole");
});
my $result = load('--json', '--requests', 4, $closing);
is_deeply([@{$result->{json}}{qw(failed retried)}], [0, 3], 'sent again')
    or diag($result->{output});

# What is asked: headers, members, prompts of a file and generated ones.
my $prefix = Moe::Server->new;
my $file = $prefix->write_file('prompts', <<'END_FILE');
plain "text"

"a JSON\nstring"
{"prompt": [1, 2], "max_tokens": 9}
END_FILE
my $chats = $prefix->write_file('chats', <<'END_FILE');
plain text
{"messages": [{"role": "system", "content": "b"}]}
END_FILE


# The requests that come of a command line, in their order: [head, body] each.
sub asked {
    my ($n, $path, @options) = @_;
    my $asked = "$prefix->{prefix}/asked";

    unlink $asked;
    my $url = scripted(sub {
        open my $out, '>>', $asked or die "$asked: $!";
        print $out json_encode($_[1]) . "\n";
        close $out;
        return "HTTP/1.1 200 OK\r\nContent-Length: " . length($whole) . "\r\n\r\n$whole";
    });
    $url =~ s{/v1/completions}{$path};
    my $answer = load('--requests', $n, @options, $url);
    is($answer->{status}, 0, "@options: sent") or diag($answer->{output});
    my @pairs = map { [split /\r\n\r\n/, json_decode($_), 2] } split /\n/, file_content($asked);
    return map { [$_->[0], json_decode($_->[1])] } @pairs;
}


sub different {
    my %seen = map { $_ => 1 } @_;

    return my @sorted = sort keys %seen;
}

my @requests = asked(4, '/v1/completions', '--prompts', $file, '--max-tokens', 5, '--model', 'm',
    '--body', '{"top_k":3}', '--key', 'secret', '--header', 'X-A: b');
like($requests[0][0], qr/^POST \/v1\/completions HTTP\/1\.1\r\nHost: 127\.0\.0\.1:\d+\r\n/, 'head');
like($requests[0][0], qr/\r\nAuthorization: Bearer secret\r\nX-A: b$/, 'headers');
is_deeply([map { $_->[1] } @requests], [
    map { { model => 'm', stream => JSON::PP::true, top_k => 3,
            stream_options => { include_usage => JSON::PP::true }, %$_ } }
    { prompt => 'plain "text"', max_tokens => 5 }, { prompt => "a JSON\nstring", max_tokens => 5 },
    { prompt => [1, 2], max_tokens => 9 }, { prompt => 'plain "text"', max_tokens => 5 }
], 'bodies');
is_deeply([map { $_->[1]{messages} } asked(2, '/v1/chat/completions', '--prompts', $chats)], [
    [{ role => 'user', content => 'plain text' }], [{ role => 'system', content => 'b' }]
], 'chats');

my @generated = asked(50, '/v1/completions', '--length', '2-4', '--ids', '7-9', '--prefix', 2,
    '--max-tokens', '3-4', '--seeds', '--no-stream');
my @prompts = map { $_->[1]{prompt} } @generated;
is_deeply([different(map { scalar @$_ } @prompts)], [2, 3, 4], 'lengths');
is_deeply([different(map { @$_ } @prompts)], [7, 8, 9], 'ids');
is(scalar(different(map { "@$_[0, 1]" } @prompts)), 1, 'one prefix');
cmp_ok(scalar(different(map { "@$_" } @prompts)), '>', 6, 'different prompts');
is_deeply([different(map { $_->[1]{max_tokens} } @generated)], [3, 4], 'max_tokens');
is(scalar(different(map { $_->[1]{seed} } @generated)), 50, 'seeds');
is($generated[0][1]{stream}, JSON::PP::false, 'not streamed');
my @same = map {
    json_encode([map { $_->[1] } asked(3, '/v1/chat/completions', '--length', '3-9', '--seed', $_)])
} 1, 1, 2;
is($same[0], $same[1], 'one seed, the same requests');
isnt($same[0], $same[2], 'another seed, others');
$prefix->remove;

# The same text in events, which may be compared with the ones before them, and in one piece.
my @texts = ('a', ' ', 'b', 'cc', '"', '\\', "\n", 'd', 'ö', '日本', 'e', '', '"text":"f"', 'g',
    "\x7f", 'h', '","text":"', 'i' x 5000, 'j', '}]}', 'k');
for my $form (
    '{"choices":[{"index":0,"text":TEXT,"logprobs":null}]}',
    '{"choices": [{"text" : TEXT, "logprobs": null}]}',
    '{"more":{"text":"b"},"choices":[{"text":TEXT}]}',
    '{"text":"z","choices":[{"delta":{"content":TEXT}}]}',
    '{"choices":[{"delta":{"reasoning_content":TEXT,"content":"+"}}]}',
) {
    my $stream = join '', map { 'data: ' . $form =~ s/TEXT/json_encode($_)/er . "\n\n" } @texts;
    my $text = join $form =~ /\+/ ? '+' : '', @texts, '';
    my $answer = json_encode({ choices => [{ text => $text }] });
    my $url = scripted(sub {
        return $_[0]
            ? "HTTP/1.1 200 OK\r\nContent-Length: " . length($answer) . "\r\n\r\n$answer"
            : ($chunked, chunks(777, $stream . "data: [DONE]\n\n"), "0\r\n\r\n");
    });
    my $same = load('--requests', 1, '--json', '--verify', '--body', $greedy, $url);

    is_deeply($same->{json}{verify}, { compared => 1, different => 0, unknown => 0 },
              "text of events: $form") or diag($same->{output});
}

# A difference is found: the same request answered with another text, or another reason to end.
for my $case (
    ['text', sub { event("a$_[0]") . "data: [DONE]\n\n" }],
    ['finish reason', sub { 'data: {"choices":[{"text":"a","finish_reason":"'
                                . ($_[0] % 2 ? 'stop' : 'length') . "\"}]}\n\ndata: [DONE]\n\n" }],
    ['length', sub { event('a') x ($_[0] + 1) . "data: [DONE]\n\n" }],
    ['later text', sub { event('a') . event('b') . event("c$_[0]") . "data: [DONE]\n\n" }],
) {
    my ($name, $body) = @$case;
    my $url = scripted(sub { return ($chunked, chunks(99, $body->($_[0])), "0\r\n\r\n") });
    my $different = load('--json', '--requests', 1, '--verify', '--body', $greedy, $url);

    is($different->{status}, 1, "another $name: status") or diag($different->{output});
    is($different->{json}{verify}{different}, 1, "another $name: found");
}
$result = load('--requests', 1, '--json', '--verify', '--body', $greedy, scripted(sub {
    return $_[0] ? ("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
                 : ($chunked, chunks(99, $events), "0\r\n\r\n");
}));
is_deeply([$result->{status}, $result->{json}{verify}{unknown}], [1, 1], 'no solo answer');

# An open loop counts from when a request was due: ten at once, answered one by one, 20 ms each.
my $slow = scripted(sub {
    sleep(0.02);
    return "HTTP/1.1 200 OK\r\nContent-Length: " . length($whole) . "\r\n\r\n$whole";
});
$result = load('--json', '--requests', 10, '--rate', 10000, '--arrivals', 'constant',
    '--concurrency', 1, $slow);
cmp_ok($result->{json}{e2e_ms}{max}, '>=', 198, 'the last one waited for all others');
cmp_ok($result->{json}{late_ms}{max}, '>=', 178, 'before it was sent');

# The command line.
for my $case (
    [['http://127.0.0.1:1/v1/completions'], qr/^load: 127\.0\.0\.1 port 1: Connection refused$/],
    [[], qr/a URL is needed/],
    [['127.0.0.1'], qr/not a URL/],
    [['http://a:0/b'], qr/not a URL/],
    [['--what', 'http://a/b'], qr/unknown option "--what"/],
    [['--rate', '-1', 'http://a/b'], qr/--rate: wrong value "-1"/],
    [['--length', '9-8', 'http://a/b'], qr/--length: wrong value "9-8"/],
    [['--key', "a\r\nb", 'http://a/b'], qr/--key: wrong value/],
    [['--duration'], qr/--duration: wrong value ""/],
    [['--verify', 'http://a/b'], qr/--verify needs/],
    [['--body', '{"n":2}', 'http://a/b'], qr/"n" other than 1/],
    [['--body', '{"prompt":"a"}', 'http://a/b'], qr/"prompt" has an option/],
    [['--ids', '1-2', 'http://a/v1/chat/completions'], qr/--ids/],
    [['--prompts', '/nowhere', 'http://a/b'], qr{/nowhere: No such file}],
) {
    my ($arguments, $message) = @$case;
    my $wrong = load(@$arguments);

    is($wrong->{status}, 2, "@$arguments: status");
    like($wrong->{output}, $message, "@$arguments: message");
}
like(load('--help')->{output}, qr/^load \[OPTIONS\] URL/, '--help');

# ---- the real server ----

my $server = server(model_block => 'batch_sequences 4; queue 4;', listen => '', start => 0);
my $tls_port = Moe::Server::free_port();
$server->make_certificate;
$server->write_config(server => "listen 127.0.0.1:$tls_port ssl; ssl_certificate cert.pem;"
    . ' ssl_certificate_key key.pem;');
$server->start;
my $url = "http://127.0.0.1:$server->{port}/v1/completions";
my @few = ('--json', '--model', 'demo', '--length', '4-12', '--max-tokens', '2-20', '--verify');

for my $case (
    ['closed loop', 12, $url, '--concurrency', 4, '--body', $greedy],
    ['open loop', 12, $url, '--rate', 100, '--concurrency', 4, '--body', $greedy],
    ['constant arrivals, seeds', 12, $url, '--rate', 100, '--arrivals', 'constant',
     '--concurrency', 4, '--seeds'],
    ['chat', 8, $url =~ s/completions/chat\/completions/r, '--concurrency', 2, '--seeds'],
    ['not streamed', 8, $url, '--concurrency', 2, '--seeds', '--no-stream'],
    ['without usage', 8, $url, '--seeds', '--no-usage'],
    ['a connection for each', 8, $url, '--no-reuse', '--seeds'],
    ['token ids, a prefix', 8, $url, '--ids', '6-2000', '--prefix', 4, '--seeds'],
    ['https', 8, "https://localhost:$tls_port/v1/completions", '--ca', "$server->{prefix}/cert.pem",
     '--concurrency', 2, '--seeds'],
    ['https, an address', 4, "https://127.0.0.1:$tls_port/v1/completions", '--insecure', '--seeds'],
) {
    my ($name, $requests, @arguments) = @$case;
    my $real = load(@few, '--requests', $requests, @arguments);
    my $json = $real->{json};

    is($real->{status}, 0, "$name: status") or diag($real->{output});
    is_deeply([@$json{qw(requests failed)}], [$requests, 0], "$name: all answered")
        or diag($real->{output});
    is_deeply($json->{verify}, { compared => $requests, different => 0, unknown => 0 },
              "$name: equal to the solo runs");
    is($json->{ttft_ms}{count}, $requests, "$name: times to the first token");
    cmp_ok($json->{e2e_ms}{p50}, '>=', $json->{ttft_ms}{p50}, "$name: which is not the end");
    cmp_ok($json->{completion_tokens}, '>=', $json->{events}, "$name: tokens");
    cmp_ok($json->{tokens_per_s}, '>', 0, "$name: tokens per second");
}

my $untrusted = load('--json', '--requests', 1, "https://localhost:$tls_port/v1/completions");
is_deeply($untrusted->{json}{errors}, { 'TLS handshake: certificate verify failed' => 1 },
          'a certificate that is not trusted') or diag($untrusted->{output});

# A duration, a warm-up, goodput; a queue that is full.
my $timed = load('--json', '--model', 'demo', '--duration', 1, '--warm-up', 0.3, '--concurrency', 2,
    '--max-tokens', 8, '--body', $greedy, '--ttft', 0.0001, $url);
cmp_ok($timed->{json}{seconds}, '<=', 0.71, 'what is measured is without the warm-up');
cmp_ok($timed->{json}{ttft_ms}{count}, '<', $timed->{json}{requests}, 'the warm-up has requests');
is($timed->{json}{goodput_per_s}, 0, 'nothing is that good');
my $full = load('--json', '--model', 'demo', '--duration', 1, '--concurrency', 40, '--max-tokens',
    200, '--body', '{"temperature":0,"ignore_eos":true}', $url);
is_deeply([keys %{$full->{json}{errors}}], ['http 429 rate_limit_exceeded'], 'queue full')
    or diag($full->{output});
is($full->{status}, 0, 'others were served');

# A signal ends the run; what was measured until then is reported.
my $pid = open(my $out, '-|', "$Moe::Server::BUILD/load", '--json', '--model', 'demo', '--duration',
    600, '--concurrency', 2, '--max-tokens', 500, '--body', $greedy, $url) or die "load: $!";
ok(wait_until(20, sub { running($server) > 0 }), 'runs');
kill 'TERM', $pid;
my $report = json_decode(do { local $/; <$out> });
ok(close $out, 'SIGTERM: status');
cmp_ok($report->{seconds}, '<', 600, 'SIGTERM: ends at once');
ok(idle($server, 10), 'SIGTERM: so do its requests');

finish();
