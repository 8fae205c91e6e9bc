# API keys: the file, who is let in, what others are told, reloads, "satisfy".

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use MIME::Base64 qw(encode_base64);
use Moe::Test;

sub line {
    my ($id, $key) = @_;

    return "$id:" . sha256_hex($key) . "\n";
}

my $server = server(start => 0,
    http => "log_format keys '\$status \$uri key=\$moe_key_id';",
    server => <<'END');
access_log %PREFIX%/keys.log keys;

location /keys/ {
    moe_pass demo;
    moe_api_keys %PREFIX%/keys;

    location /keys/open/ {
        moe_pass demo;
        moe_api_keys off;
    }
}

location /salted/ {
    moe_pass demo;
    moe_cache_salt $http_x_salt;

    location /salted/keys/ {
        moe_pass demo;
        moe_api_keys %PREFIX%/keys;
    }
}

location /page/ {
    moe_pass demo;
    moe_api_keys %PREFIX%/keys;
    error_page 401 = @page;
}

location @page {
    return 401 "a page\n";
}

location /html/ {
    moe_pass demo;
    moe_api_keys %PREFIX%/keys;
    client_max_body_size 10;
    default_type text/html;
    error_page 413 /html.html;

    location /html/named/ {
        moe_pass demo;
        error_page 413 @html;
    }

    location /html/recursive/ {
        moe_pass demo;
        recursive_error_pages on;
        error_page 413 @recursive;
    }
}

location = /html.html {
    moe_api_keys %PREFIX%/keys;
    default_type text/html;
    root %PREFIX%;
}

location @html {
    moe_api_keys %PREFIX%/keys;
    default_type text/html;
    return 413 "<p>a page\n";
}

location @recursive {
    moe_api_keys %PREFIX%/keys;
    default_type text/html;
    recursive_error_pages on;
    return 413 "<p>again\n";
}

location /delayed/ {
    moe_pass demo;
    moe_api_keys %PREFIX%/keys;
    auth_delay 50ms;
}

location /any/ {
    moe_pass demo;
    satisfy any;
    moe_api_keys %PREFIX%/keys;
    auth_basic "all of it";
    auth_basic_user_file %PREFIX%/users;
}

location /all/ {
    moe_pass demo;
    moe_api_keys %PREFIX%/keys;
    allow 127.0.0.2;
    deny all;
}

location /near/ {
    moe_pass demo;
    satisfy any;
    moe_api_keys %PREFIX%/keys;
    allow 127.0.0.1;
    deny all;
}

location /proxied/ {
    moe_api_keys %PREFIX%/keys;
    proxy_pass http://127.0.0.1:%PORT%/;
}
END
$server->write_file('keys', "# who is who\n\n" . line('alice', 'sk-alice') . " \t# none\r\n  "
    . line('bob@example.com', 'sk-bob') . uc(sha256_hex('sk-carol')) =~ s/^/carol:/r . " \r");
$server->write_file('html.html', "<p>a file\n");
$server->write_file('users', "dave:{PLAIN}secret\n");
$server->start;

my %body = (model => 'demo', prompt => 'Syntax: gzip', max_tokens => 3);
my ($basic, $other) = map { 'Basic ' . encode_base64($_, '') } 'dave:secret', 'dave:other';

sub ask {
    my ($prefix, $headers, $method, $uri) = @_;
    my $client = client($server, no_body => ($method // '') eq 'HEAD');
    my $answer = $client->request($method // 'POST', $prefix . ($uri // '/v1/completions'),
                                  $method ? undef : \%body, headers => $headers);

    $client->close;
    return $answer;
}

my %alice = (Authorization => 'Bearer sk-alice');

# headers, status
for my $case (
    [\%alice, 200],
    [{ Authorization => 'bearer   sk-bob' }, 200],
    [{ 'x-api-key' => 'sk-carol' }, 200],
    [{ 'X-API-Key' => 'sk-alice' }, 200],
    [{ Authorization => $basic, 'x-api-key' => 'sk-alice' }, 200],
    [{ %alice, 'x-api-key' => 'wrong' }, 200],
    [{ Authorization => 'Bearer wrong', 'x-api-key' => 'sk-alice' }, 401],
    [{}, 401],
    [{ Authorization => 'Bearer' }, 401],
    [{ Authorization => 'Bearer ' }, 401],
    [{ Authorization => 'Bearer sk-alic' }, 401],
    [{ Authorization => 'Bearer sk-alice2' }, 401],
    [{ Authorization => 'Bearer SK-ALICE' }, 401],
    [{ Authorization => 'Bearer alice' }, 401],
    [{ Authorization => 'Bearer ' . sha256_hex('sk-alice') }, 401],
    [{ Authorization => 'Bearer ' . 'x' x 7000 }, 401],
    [{ Authorization => 'sk-alice' }, 401],
    [{ Authorization => $basic }, 401],
    [{ 'x-api-key' => '' }, 401],
    [{ 'x-api-key' => 'Bearer sk-alice' }, 401],
    [{ 'api-key' => 'sk-alice' }, 401],
) {
    my ($headers, $status) = @$case;
    my $name = substr join(', ', map { "$_: $headers->{$_}" } sort keys %$headers), 0, 60;

    is(ask('/keys', $headers)->{status}, $status, "$status for '$name'");
}

# One answer for everything.
my $refused = ask('/keys', {});
is_deeply($refused->{json}{error}, { type => 'authentication_error', code => 'invalid_api_key',
    param => undef, message => 'a valid API key is required, as Authorization: Bearer KEY or '
    . 'x-api-key: KEY' }, 'the body');
is($refused->{headers}{'www-authenticate'}, 'Bearer', 'WWW-Authenticate');
for my $case (['GET', '/v1/models'], ['GET', '/v1/models/demo'], ['GET', '/v1/models/none'],
              ['GET', '/health'], ['GET', '/nowhere'], ['DELETE', '/v1/completions'],
              ['OPTIONS', '/v1/completions'], ['GET', '/'], ['PATCH', '/nowhere'])
{
    my $answer = ask('/keys', { Authorization => 'Bearer wrong' }, @$case);
    is("$answer->{status} $answer->{body}", "401 $refused->{body}", "the same for @$case");
    is($answer->{headers}{allow}, undef, "no Allow for @$case");
}
is(ask('/keys', {}, 'HEAD', '/v1/models')->{status}, 401, 'HEAD');
is(ask('/keys', \%alice, 'GET', '/v1/models')->{status}, 200, 'with a key: models');
is(ask('/keys', \%alice, 'GET', '/nowhere')->{status}, 404, 'with a key: nothing there');
is(ask('/keys', \%alice, 'OPTIONS', '/v1/completions')->{status}, 204, 'with a key: OPTIONS');
is(ask('/keys/open', {})->{status}, 200, 'off');

# It comes before the body, and leaves the connection in order.
my $client = client($server);
$client->send_raw("POST /keys/v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n");
is($client->read_answer->{status}, 401, 'before the body');
$client->close;
$client = client($server);
is($client->request('POST', '/keys/v1/completions', \%body)->{status}, 401, 'connection: refused');
is($client->request('POST', '/keys/v1/completions', \%body, headers => \%alice)->{status}, 200,
   'connection: then served');
$client->close;

# nginx's own ways.
is(ask('/page', {})->{body}, "a page\n", 'error_page');
is(ask('/page', {})->{headers}{'www-authenticate'}, 'Bearer', 'error_page: WWW-Authenticate');
is(ask('/page', \%alice)->{status}, 200, 'error_page: with a key');
for my $expect ({}, { Expect => '100-continue' }) {
    my %headers = (%alice, %$expect);
    is(ask('/html', \%headers)->{body}, "<p>a file\n", 'error_page: a file of HTML');
    is(ask('/html/named', \%headers)->{body}, "<p>a page\n", 'error_page: a text of HTML');
    is(ask('/html/recursive', \%headers)->{body}, "<p>again\n", 'error_page: recursive');
}
for my $prefix (qw(/delayed /proxied)) {
    my $answer = ask($prefix, {});
    is("$answer->{status} $answer->{body}", "401 $refused->{body}", "the same in $prefix");
}
is(ask('/proxied', \%alice)->{status}, 200, 'a location with another handler: with a key');
for my $case (['/any', {}, 401], ['/any', \%alice, 200], ['/any', { Authorization => $basic }, 200],
              ['/any', { Authorization => $other }, 401], ['/any', { 'x-api-key' => 'x' }, 401],
              ['/near', {}, 200], ['/near', \%alice, 200], ['/near', { 'x-api-key' => 'x' }, 200],
              ['/all', \%alice, 403], ['/all', {}, 403])
{
    my ($prefix, $headers, $status) = @$case;
    my $answer = ask($prefix, $headers);

    is($answer->{status}, $status, "satisfy: $status for $prefix " . json_encode($headers));
    is($answer->{json}{error}{code}, $status == 401 ? 'invalid_api_key' : $status == 403
       ? 'permission_denied' : undef, 'satisfy: in the words of the API');
    is($answer->{headers}{'www-authenticate'}, undef, 'satisfy: no challenge') if $status != 401;
}
$server->expect(qr/access forbidden by rule/);
unlike($server->log_text, qr{no valid API key.*POST /(?:near|all)/},
       'satisfy: no key is asked for where another module decides');

# $moe_key_id
ok(wait_until(3, sub { $server->log_text('keys.log') =~ /^403.*^403/ms }), 'the log is written');
my $log = $server->log_text('keys.log');
like($log, qr{^200 /keys/v1/completions key=$_$}m, "\$moe_key_id: $_")
    for qw(alice bob@example.com carol);
unlike($log, qr{^401 .* key=(?!-$)}m, '$moe_key_id: of nobody');
like($log, qr{^200 /near/v1/completions key=-$}m, '$moe_key_id: let in without');

# Who shares cached prefixes: the same key and the same moe_cache_salt, and nobody else, whatever
# the salt is that a client could choose.
my @salts = ('alice', 'key:alice', 'x', 'x:y', 'z' x 300, 'z' x 299 . 'y',
             'sha256:' . sha256_hex('key:alice:' . 'z' x 300));
my @sharers = ((map { ['/salted', {}, $_] } '', @salts),
               (map { ['/salted/keys', \%alice, $_] } '', @salts),
               ['/salted/keys', { 'x-api-key' => 'sk-bob' }, ''],
               ['/salted/keys', { 'x-api-key' => 'sk-bob' }, 'x']);
for my $round ('parted', 'shared') {
    for my $sharer (@sharers) {
        my ($prefix, $headers, $salt) = @$sharer;
        my $answer = post($server, "$prefix/v1/completions",
            { model => 'demo', prompt => [(7) x 100], max_tokens => 1 },
            headers => { %$headers, 'X-Salt' => $salt });
        my $cached = $answer->{json}{usage}{prompt_tokens_details}{cached_tokens} // -1;
        cmp_ok($cached, $round eq 'parted' ? '==' : '>', 0,
               "salts: $round for " . json_encode($sharer));
    }
}

# A reload reads the file; a bad one keeps what was.
$server->write_file('keys', line('erin', 'sk-erin'));
$server->reload;
is(ask('/keys', \%alice)->{status}, 401, 'reload: the old key');
is(ask('/keys', { 'x-api-key' => 'sk-erin' })->{status}, 200, 'reload: the new key');
$server->write_file('keys', line('frank', 'sk-frank') . "broken\n");
$server->signal('HUP');
ok(wait_until(5, sub { $server->log_text =~ /\[emerg\].* in \S+keys:2 in \S+nginx\.conf:\d+/ }),
   'reload: a bad file is named');
is(ask('/keys', { 'x-api-key' => 'sk-erin' })->{status}, 200, 'reload: and what was stays');
is(ask('/keys', { 'x-api-key' => 'sk-frank' })->{status}, 401, 'reload: all of it');
$server->expect(qr/\[emerg\].*keys:2/);

# What nginx -t says of a file.
my $checked = server(start => 0, location => 'moe_api_keys keys;');
my $digest = sha256_hex('k');
my @many = map { line("k$_", $_) } 1 .. 10001;
for my $case (
    [line('a', 'k') . line('b', 'l'), undef],
    [join('', @many[0 .. 9999]), undef],
    [line('a' x 64, 'k') . line('Az09-_.@+', 'l'), undef],
    ["\n#x\na$digest\n", qr/no "ID:SHA256" in \S+keys:3/],
    [":$digest", qr/empty or too long id .*keys:1/],
    [line('a' x 65, 'k'), qr/empty or too long id .*keys:1/],
    [line('a b', 'k'), qr/invalid character .*keys:1/],
    [line("\xc3\xa4", 'k'), qr/invalid character .*keys:1/],
    ["\xef\xbb\xbf" . line('a', 'k'), qr/invalid character .*keys:1/],
    ["a\0:$digest", qr/invalid character .*keys:1/],
    ['a:' . substr($digest, 1), qr/no SHA-256 .*keys:1/],
    ["a:${digest}0", qr/no SHA-256 .*keys:1/],
    ["a:$digest # x", qr/no SHA-256 .*keys:1/],
    ['a:g' . substr($digest, 1), qr/no SHA-256 .*keys:1/],
    ['a:sk-secret', qr/no SHA-256 .*keys:1/],
    [line('a', ''), qr/SHA-256 of an empty key .*keys:1/],
    [line('a', 'k') . line('b', 'l') . line('a', 'm'), qr/duplicate id "a" .*keys:3, see line 1/],
    [line('a', 'k') . "\n" . line('b', 'k'), qr/duplicate key .*keys:3, see line 1/],
    [join('', @many), qr/more than 10000 keys .*keys:10001/],
    ['', qr/"\S+keys" holds no key/],
    ["# none\n", qr/"\S+keys" holds no key/],
    ['#' x (2 << 20) . "\n", qr/"\S+keys" is larger than/],
) {
    my ($text, $pattern) = @$case;
    my $name = substr $text =~ s/[^ -~]/./gr, 0, 40;
    $checked->write_file('keys', $text);
    my ($status, $output) = $checked->check_config;

    if (!$pattern) {
        is($status, 0, "file '$name': right") or diag($output);
        next;
    }
    is($status, 1, "file '$name': refused");
    like($output, qr/\[emerg\].*$pattern.* in \S+nginx\.conf:\d+/, "file '$name': named")
        or diag($output);
    unlike($output, qr/sk-secret/, "file '$name': no secrets") if $text =~ /secret/;
}
unlink "$checked->{prefix}/keys";
like(($checked->check_config)[1], qr/\[emerg\].*open\(\) "\S+keys" failed/, 'no file');
mkdir "$checked->{prefix}/keys";
like(($checked->check_config)[1], qr/\[emerg\].*"\S+keys" is not a file/, 'a directory');
rmdir "$checked->{prefix}/keys";
system('mkfifo', "$checked->{prefix}/keys");
like(($checked->check_config)[1], qr/\[emerg\].*"\S+keys" is not a file/, 'a pipe');
$checked->expect(qr/\[emerg\]/);

finish();
