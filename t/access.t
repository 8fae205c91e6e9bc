# Who may ask, and how often: auth_basic, auth_request, allow and deny, satisfy, limit_req and
# limit_conn work in front of moe_pass, and what they refuse is an error object, too.

use lib 't/lib';
use Moe::Test;

my $server = server(start => 0, http => <<'HTTP', server => <<'END');
limit_req_zone $arg_who zone=requests:1m rate=1r/m;
limit_conn_zone $arg_who zone=streams:1m;
HTTP
location /basic/ {
    auth_basic model;
    auth_basic_user_file %PREFIX%/users;
    moe_pass demo;
}

location /asked/ {
    auth_request /auth;
    moe_pass demo;
}

location /asked-health/ {
    auth_request /v1/healthy;
    moe_pass demo;
}

location /asked-post/ {
    auth_request /v1/completions;
    moe_pass demo;
}

location = /v1/healthy {
    rewrite ^ /health break;
    moe_pass demo;
}

location = /auth {
    internal;
    if ($http_x_user = ok) {
        return 204;
    }
    if ($http_x_user = no) {
        return 403;
    }
    return 401;
}

location /denied/ {
    deny all;
    moe_pass demo;
}

location /any/ {
    satisfy any;
    allow 127.0.0.2;
    deny all;
    auth_basic model;
    auth_basic_user_file %PREFIX%/users;
    moe_pass demo;
}

location /all/ {
    satisfy all;
    allow 127.0.0.1;
    deny all;
    auth_basic model;
    auth_basic_user_file %PREFIX%/users;
    auth_request /auth;
    moe_pass demo;
}

location /requests/ {
    limit_req zone=requests burst=1 nodelay;
    moe_pass demo;
}

location /requests-429/ {
    limit_req zone=requests burst=1 nodelay;
    limit_req_status 429;
    moe_pass demo;
}

location /streams/ {
    limit_conn streams 2;
    limit_conn_status 429;
    moe_pass demo;
}
END
$server->write_file('users', 'ann:{PLAIN}secret' . "\n");
chmod 0644, "$server->{prefix}/users";
$server->start;

my @ann = (Authorization => 'Basic YW5uOnNlY3JldA==');
my @bob = (Authorization => 'Basic Ym9iOnNlY3JldA==');
my %error = (
    401 => ['authentication_error', 'invalid_api_key'],
    403 => ['permission_error', 'permission_denied'],
    429 => ['rate_limit_exceeded', 'rate_limit_exceeded'],
    500 => ['server_error', 'server_error'],
    503 => ['service_unavailable', 'service_unavailable'],
);

sub is_refusal {
    my ($answer, $status, $name) = @_;
    my $retry = $status == 429 || $status == 503 ? qr/^\d+$/ : qr/^$/;

    is($answer->{status}, $status, "$name: status");
    like($answer->{headers}{'content-type'}, qr{^application/json}, "$name: content type");
    is_deeply([@{($answer->{json} // {})->{error} // {}}{qw(type code)}], $error{$status},
              "$name: error") or diag($answer->{body});
    like($answer->{headers}{'retry-after'} // '', $retry, "$name: Retry-After");
    return;
}

my $expected = essence(completion($server, long_body(5)));
for my $case (
    # location, headers, status, WWW-Authenticate
    ['basic', [], 401, qr/^Basic/], ['basic', \@bob, 401, qr/^Basic/], ['basic', \@ann, 200],
    ['asked', [], 401], ['asked', ['X-User' => 'no'], 403],
    ['asked', ['X-User' => 'ok'], 200], ['denied', [], 403], ['denied', \@ann, 403],
    ['any', [], 401, qr/^Basic/], ['any', \@ann, 200], ['all', [], 401, qr/^Basic/],
    ['all', \@ann, 401], ['all', [@ann, 'X-User' => 'no'], 403],
    ['all', [@ann, 'X-User' => 'ok'], 200],
    # the module's own routes as judges: subrequests are GETs, which a POST route does not take,
    # and auth_request makes a 500 of anything but 2xx, 401 and 403
    ['asked-health', [], 200], ['asked-post', [], 500],
) {
    my ($location, $headers, $status, $asks) = @$case;
    for my $stream (0, 1) {
        my $answer = post($server, "/$location/v1/completions",
            { model => 'demo', stream => $stream ? \1 : \0, %{long_body(5)} },
            headers => { @$headers });
        my $name = "/$location/ @$headers, stream $stream";
        if ($status != 200) {
            is_refusal($answer, $status, $name);
            like($answer->{headers}{'www-authenticate'} // '', $asks // qr/^$/, "$name: asks");
        } elsif ($stream) {
            like($answer->{body}, qr/\ndata: \[DONE\]\n\n\z/, $name);
        } else {
            is(essence($answer), $expected, $name);
        }
    }
}
like($server->log_text, qr/auth request unexpected status: 405/, 'auth_request says why');

# limit_req: two at once, no more in this minute; another client is another matter.
for my $case (['requests', 503], ['requests-429', 429]) {
    my ($location, $status) = @$case;
    my @statuses = map {
        post($server, "/$location/v1/completions?who=$location",
             { model => 'demo', %{long_body(1)} })
    } 1 .. 3;
    is_deeply([map { $_->{status} } @statuses[0, 1]], [200, 200], "limit_req: $location");
    is_refusal($statuses[2], $status, "limit_req: $location, one too many");
}
is(post($server, '/requests/v1/completions?who=other',
        { model => 'demo', %{long_body(1)} })->{status}, 200, 'limit_req: another client');

# limit_conn counts streams as long as they last.
my @held = map { hold($server, undef, uri => '/streams/v1/completions?who=ann') } 1, 2;
is_refusal(post($server, '/streams/v1/completions?who=ann',
                { model => 'demo', %{long_body(1)} }), 429, 'limit_conn: a third stream');
is(post($server, '/streams/v1/completions?who=bob',
        { model => 'demo', %{long_body(1)} })->{status}, 200, 'limit_conn: another client');
$_->close for @held;
ok(wait_until(5, sub { post($server, '/streams/v1/completions?who=ann',
    { model => 'demo', %{long_body(1)} })->{status} == 200 }), 'limit_conn: when one has ended');
ok(idle($server), 'refused requests leave nothing in the engine');

finish();
