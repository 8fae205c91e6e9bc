# Subrequests to and in front of moe_pass: SSI, addition, mirror.  Those of nginx are GETs, but for
# mirror's; a page reaches a stream through proxy_method POST.

use lib 't/lib';
use Moe::Test;

my $server = server(start => 0, http => 'log_format uri "$uri $status $moe_completion_tokens";',
    server => <<'END');
access_log %PREFIX%/uri.log uri;
log_subrequest on;

location /pages/ {
    root %PREFIX%;
    default_type text/html;
    ssi on;
}

location = /ask {
    internal;
    proxy_pass http://127.0.0.1:%PORT%/v1/completions;
    proxy_http_version 1.1;
    proxy_method POST;
    proxy_set_body '{"prompt":"Syntax: gzip","max_tokens":30,"temperature":0,"stream":$arg_stream}';
    proxy_buffering off;
}

location /added/ {
    add_before_body /v1/models;
    add_after_body /health;
    addition_types *;
    moe_pass demo;
}

location /mirrored/ {
    mirror /copy;
    moe_pass demo;
}

location = /copy {
    internal;
    rewrite ^ /v1/completions break;
    moe_pass demo;
}
END
mkdir "$server->{prefix}/pages" or die "mkdir: $!";
my %pages = (
    models => '<p><!--#include virtual="/v1/models" --></p>',
    several => '<!--#include virtual="/health" -->|<!--#include virtual="/v1/nothing" -->'
               . '|<!--#include virtual="/v1/models/demo" -->|end',
    post => '<p><!--#include virtual="/v1/completions" --></p>',
    answer => '<p><!--#include virtual="/ask?stream=false" --></p>',
    stream => '<p><!--#include virtual="/ask?stream=true" --></p>'
              . '<p><!--#include virtual="/ask?stream=true" --></p>',
);
$server->write_file("pages/$_.html", $pages{$_}) for keys %pages;
chmod 0755, "$server->{prefix}/pages";
$server->start;

my $models = get($server, '/v1/models')->{body};
my $health = get($server, '/health')->{body};
my $text = completion($server, long_body(30))->{json}{choices}[0]{text};

sub page {
    my ($name) = @_;
    my $answer = get($server, "/pages/$name.html");

    is($answer->{status}, 200, "SSI, $name: status");
    return $answer->{body};
}

is(page('models'), "<p>$models</p>", 'SSI: the models');
my @parts = split /\|/, page('several');
is($parts[0], $health, 'SSI: one of several, in order');
like($parts[1], qr/"code":"not_found"/, 'SSI: no such route');
like($parts[2], qr/"id":"demo"/, 'SSI: a model');
is($parts[3], 'end', 'SSI: the rest of the page');
like(page('post'), qr{<p>\{"error".*"method_not_allowed".*\}\n</p>},
     'SSI: a POST route takes no GET');
is(json_decode(page('answer') =~ s{^<p>|</p>$}{}gr)->{choices}[0]{text}, $text,
   'SSI through a proxy: an answer');
my @streams = page('stream') =~ m{<p>(.*?)</p>}gs;
is(scalar @streams, 2, 'SSI through a proxy: two streams');
for my $stream (@streams) {
    my @data = $stream =~ /^data: (.*)$/mg;
    is(pop @data, '[DONE]', 'SSI through a proxy: the end of a stream');
    is(join('', map { json_decode($_)->{choices}[0]{text} } @data), $text,
       'SSI through a proxy: its text');
}

# addition
for my $stream (\0, \1) {
    my $answer = post($server, '/added/v1/completions', { stream => $stream, %{long_body(30)} });
    my $inner = $answer->{body} =~ s/^\Q$models\E//r =~ s/\Q$health\E$//r;
    is(length $answer->{body}, length($inner) + length($models) + length $health,
       "addition, stream $$stream: before and after");
    $$stream ? like($inner, qr/\ndata: \[DONE\]\n\n\z/, 'addition, stream: whole')
             : is(json_decode($inner)->{choices}[0]{text}, $text, 'addition: the answer');
}

# mirror: the copy has the body, too; nobody sees its answer, and it must not stay.
for my $stream (\0, \1) {
    my $answer = post($server, '/mirrored/v1/completions',
                      { stream => $stream, %{long_body(30)} });
    is($answer->{status}, 200, "mirror, stream $$stream: status");
    $$stream ? like($answer->{body}, qr/\ndata: \[DONE\]\n\n\z/, 'mirror, stream: whole')
             : is($answer->{json}{choices}[0]{text}, $text, 'mirror: the answer');
}
ok(wait_until(5, sub { 2 == (() = $server->log_text('uri.log') =~ m{^/v1/completions 200 30$}mg) }),
   'mirror: the copies were answered, too') or diag($server->log_text('uri.log'));
ok(idle($server), 'idle');

finish();
