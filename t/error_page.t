# error_page for what the module answers and for what nginx refuses: a page, another status, a
# named location, another server; without one the dialect's object.

use lib 't/lib';
use Moe::Test;

my %full = (slow => 1, model_block => 'batch_sequences 1; queue 1; queue_timeout 500ms;');
my $spare = server(%full);
my $server = server(%full, spare => $spare->{port}, server => <<'END');
location /page/ {
    error_page 400 404 413 429 /page.txt;
    moe_pass demo;
}

location = /page.txt {
    internal;
    return 200 "page of $status";
}

location /status/ {
    error_page 400 413 =418 /page.txt;
    moe_pass demo;
}

location /named/ {
    error_page 400 404 405 413 429 = @other;
    moe_pass demo;
}

location @other {
    return 202 "other for $request_method $uri";
}

# what a busy node cannot take is passed on, body and all
location /spill/ {
    error_page 429 503 = @spare;
    moe_pass demo;
}

location @spare {
    rewrite ^/spill(.*) $1 break;
    proxy_pass http://127.0.0.1:%SPARE%;
    proxy_http_version 1.1;
    proxy_buffering off;
}

# the module is the page; its own errors are no matter of error_page any more
location /back/ {
    error_page 404 418 = @back;
    return 418;
}

location @back {
    rewrite ^/back(.*) $1 break;
    moe_pass demo;
}

# the model here is what is asked when the other server fails
location /fallback/ {
    error_page 502 = @local;
    proxy_pass http://127.0.0.1:1;
}

location @local {
    rewrite ^/fallback(.*) $1 break;
    moe_pass demo;
}
END
my %bodies = (
    bad => '{"prompt": 5}', unknown => { model => 'none', prompt => 'a' },
    large => ' ' x 1_100_000, good => { model => 'demo', %{long_body(3)} },
);
my $good = essence(completion($server, long_body(3)));
$spare->expect(qr/connect/);

for my $case (
    # location, body, status, what the body is
    ['page', 'bad', 400, 'page of 400'], ['page', 'unknown', 404, 'page of 404'],
    ['page', 'large', 413, 'page of 413'], ['status', 'bad', 418, 'page of 418'],
    ['status', 'large', 418, 'page of 418'],
    (map { ['named', $_, 202, 'other for POST /named/v1/completions'] } qw(bad unknown large)),
    ['status', 'unknown', 404, qr/"code":"model_not_found"/],
    ['back', 'unknown', 404, qr/"code":"model_not_found"/],
    ['back', 'bad', 400, qr/"param":"prompt"/],
    ['fallback', 'bad', 400, qr/"param":"prompt"/],
    (map { [$_, 'good', 200] } qw(page status named spill back fallback)),
) {
    my ($location, $body, $status, $content) = @$case;
    my $answer = post($server, "/$location/v1/completions", $bodies{$body});
    my $name = "/$location/, $body";
    is($answer->{status}, $status, "$name: status");
    !defined $content ? is(essence($answer), $good, $name)
        : ref $content ? like($answer->{body}, $content, $name)
        : is($answer->{body}, $content, $name);
}
is(get($server, '/named/v1/completions')->{body}, 'other for GET /named/v1/completions',
   'a wrong method');

# A full queue, and a wait that was too long: plain, as a stream, with a body parsed in a thread.
my $runner = send_body($server, long_body(2000));
ok(wait_until(5, sub { running($server) == 1 }), 'one runs');
for my $full (0, 1) {
    my $waiter;
    if ($full) {
        $waiter = send_body($server, long_body(3));
        ok(wait_until(5, sub { waiting($server) == 1 }), 'the queue is full');
        my $answer = post($server, '/page/v1/completions', $bodies{good});
        is($answer->{body}, 'page of 429', 'full: a page');
        $waiter->close;
        $waiter = send_body($server, long_body(3));
    }
    my $name = $full ? 'full' : 'waited in vain';
    is(essence(post($server, '/spill/v1/completions', $bodies{good})), $good,
       "$name: the spare answers");
    is(essence(post($server, '/spill/v1/completions',
                    { %{$bodies{good}}, padding => 'x' x 200_000 })), $good,
       "$name: the spare answers, a large body");
    my $result = collect_all($server, '/spill/v1/completions', long_body(3));
    ok($result->{done} && $result->{finish} eq 'length', "$name: the spare answers, a stream");
    $waiter->close if $waiter;
}
$runner->close;
ok(idle($_, 5), 'idle') for $server, $spare;

finish();
