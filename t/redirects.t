# Ways to a moe_pass location: rewrite, try_files, named locations, "if", limit_except, regular
# expressions; the request's body comes along.

use lib 't/lib';
use Moe::Test;

my $server = server(http => "moe_model other $Moe::Server::MODEL { threads 1; }",
    server => <<'END');
root %PREFIX%;

location /old/ {
    rewrite ^/old/(.*) /v1/$1 last;
}

location /break/ {
    rewrite ^/break(.*) $1 break;
    moe_pass demo;
}

location /files/ {
    try_files $uri @model;
}

location /files-uri/ {
    rewrite ^/files-uri(.*) $1;
    try_files /none /v1/completions;
}

location @model {
    rewrite ^/files(.*) $1 break;
    moe_pass demo;
}

location ~ ^/regex(?<rest>/v1/.*)$ {
    rewrite ^ $rest break;
    moe_pass demo;
}

location /nested/ {
    location /nested/inner/ {
        moe_pass demo;
    }
    return 404;
}

location /if/ {
    moe_pass demo;
    if ($arg_model = other) {
        moe_pass other;
    }
    if ($arg_header) {
        add_header X-If yes;
    }
    if ($arg_deny) {
        return 403;
    }
    if ($arg_rewrite) {
        rewrite ^/if(.*) /break$1 last;
    }
}

location /set/ {
    set $model demo;
    if ($arg_model) {
        set $model $arg_model;
    }
    moe_pass $model;
}

location /except/ {
    moe_pass demo;
    limit_except POST {
        deny all;
    }
}
END
ok(wait_until(20, sub { post($server, '/set/v1/completions?model=other',
    { prompt => 'a', max_tokens => 1 })->{status} == 200 }), 'both engines serve');

my $expected = completion($server, long_body(5))->{json}{choices}[0]{text};
for my $case (
    # URI, status, model
    ['/old/completions', 200, 'demo'], ['/break/v1/completions', 200, 'demo'],
    ['/files/v1/completions', 200, 'demo'], ['/files-uri/v1/completions', 200, 'demo'],
    ['/regex/v1/completions', 200, 'demo'], ['/nested/inner/v1/completions', 200, 'demo'],
    ['/nested/v1/completions', 404], ['/if/v1/completions', 200, 'demo'],
    ['/if/v1/completions?model=other', 200, 'other'],
    ['/if/v1/completions?header=1', 200, 'demo', { 'x-if' => 'yes' }],
    ['/if/v1/completions?deny=1', 403], ['/if/v1/completions?rewrite=1', 200, 'demo'],
    ['/set/v1/completions', 200, 'demo'], ['/set/v1/completions?model=other', 200, 'other'],
    ['/set/v1/completions?model=none', 404], ['/except/v1/completions', 200, 'demo'],
) {
    my ($uri, $status, $model, $headers) = @$case;
    for my $padding ('', 'x' x 100_000) {
        my $answer = post($server, $uri, { %{long_body(5)}, padding => $padding });
        my $name = "$uri, " . length($padding) . ' bytes more';
        is($answer->{status}, $status, $name) or diag($answer->{body});
        next if $status != 200;
        is($answer->{json}{model}, $model, "$name: model");
        is($answer->{json}{choices}[0]{text}, $expected, "$name: text");
        is($answer->{headers}{$_}, $headers->{$_}, "$name: $_") for sort keys %{$headers // {}};
    }
    next if $status != 200;
    my $client = stream($server, $uri, { model => undef, %{long_body(5)} });
    my $result = collect($client);
    ok($result->{done} && $result->{text} eq $expected, "$uri: a stream");
    $client->close;
}
is(get($server, '/except/v1/models')->{status}, 403, 'limit_except');
is(get($server, '/break/v1/models')->{json}{data}[0]{id}, 'demo', 'GET after a rewrite');
ok(idle($server), 'idle');

finish();
