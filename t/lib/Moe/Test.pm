package Moe::Test;

# What every t/*.t uses: strict, warnings, Test::More and the verbs below.
#
#     use lib 't/lib';
#     use Moe::Test;
#
#     my $server = server(model_block => 'queue 4;');
#     is(completion($server, { prompt => 'Syntax: gzip' })->{status}, 200, 'served');
#     finish();
#
# finish() stops every server and fails the test for alerts, crashes, sanitizer reports and
# left-over processes.  A test that dies or hangs is ended by the watchdog; its processes are killed
# and its prefix is kept.

use strict;
use warnings;
use utf8;

use parent 'Exporter';
use JSON::PP ();
use Test::More;
use Time::HiRes qw(time sleep);

use Moe::Client;
use Moe::Server;

our @EXPORT = (@Test::More::EXPORT, qw(
    server finish client send_body post completion chat get stream hold collect collect_all parallel
    essence counts metric metrics running waiting idle tokenize wait_until long_body json_encode
    json_decode time sleep file_content save_file engine_command sample is_error
));

use constant WATCHDOG => 400;

my $json = JSON::PP->new->utf8->canonical->allow_nonref;
my @servers;
my $finished;


sub import {
    my ($class) = @_;

    strict->import;
    warnings->import;
    utf8->import;
    binmode $_, ':utf8' for Test::More->builder->output, Test::More->builder->failure_output,
        Test::More->builder->todo_output;
    $SIG{PIPE} = 'IGNORE';
    $SIG{ALRM} = sub { die "watchdog: the test takes too long\n" };
    alarm WATCHDOG * $Moe::Server::SLOW;
    $class->export_to_level(1, $class);
    return;
}


# A running server; arguments as for Moe::Server->new, and start => 0 leaves it stopped,
# ready => 0 does not wait for the engine.
sub server {
    my (%args) = @_;
    my $start = delete $args{start} // 1;
    my $ready = delete $args{ready} // 1;
    my $server = Moe::Server->new(%args);

    push @servers, $server;
    $server->start(ready => $ready) if $start;
    return $server;
}


# Stops all servers, checks what they left behind and ends the test.
sub finish {
    for my $server (@servers) {
        is_deeply([$server->stop], [], 'no alerts, crashes or left-over processes');
    }
    $finished = 1;
    alarm 0;
    return done_testing();
}


END {
    my $failed = !$finished || !Test::More->builder->is_passing;
    my $status = $?;

    for my $server (grep { $_->{owner} == $$ } @servers) {
        $server->kill_all;
        if ($failed) {
            diag("kept: $server->{prefix}");
        } else {
            $server->remove;
        }
    }
    if ($failed && @servers) {
        my @lines = split /\n/, $servers[-1]->log_text;
        splice @lines, 0, @lines - 20 if @lines > 20;
        diag(join "\n", @lines);
    }
    $? = $status;
}


sub wait_until {
    return Moe::Server::wait_until(@_);
}


# An answer that is a short error of this status, with these members.
sub is_error {
    my ($answer, $status, $name, %expected) = @_;
    my $error = ($answer->{json} // {})->{error} // {};
    my @wrong = grep { ($error->{$_} // '') ne ($expected{$_} // '') } sort keys %expected;

    push @wrong, 'status' if $answer->{status} != $status;
    push @wrong, 'content type' if $answer->{headers}{'content-type'} !~ m{^application/json};
    push @wrong, 'message' if length($error->{message} // '') < 6;
    push @wrong, 'size' if length $answer->{body} >= 4096;
    is(join(', ', @wrong), '', $name)
        or diag("$answer->{status}: " . substr $answer->{body}, 0, 300);
    return;
}


sub json_encode {
    return $json->encode($_[0]);
}


sub json_decode {
    return $json->decode($_[0]);
}


sub file_content {
    my ($path) = @_;

    open my $file, '<:raw', $path or die "$path: $!";
    local $/;
    return <$file>;
}


*save_file = \&Moe::Server::save_file;


# A configuration of conf/ as a template for Moe::Server, with other paths; more pairs of what is
# there and what replaces it.
sub sample {
    my ($name, @pairs) = @_;
    my $text = file_content("$Moe::Server::ROOT/conf/$name");

    @pairs = (
        '/usr/local/lib/nginx/modules' => '%BUILD%',
        'user             www-data;' => '%USER%',
        'worker_processes auto;' => 'worker_processes 2; daemon off;',
        '/var/log/nginx/error.log notice' => '%PREFIX%/error.log info',
        '/var/log/nginx/access.log' => '%PREFIX%/access.log',
        '/run/nginx.pid' => '%PREFIX%/nginx.pid',
        "http {\n" => "http {\n" . join('', map { "${_}_temp_path %PREFIX%/$_;\n" }
            qw(client_body proxy fastcgi uwsgi scgi)),
        @pairs,
    );
    while (my ($there, $instead) = splice @pairs, 0, 2) {
        $text =~ s/\Q$there\E/$instead/g or die "$name: no $there\n";
    }
    return $text;
}


sub client {
    my ($server, %args) = @_;

    return Moe::Client->new(port => $server->{port}, %args);
}


# Sends a completion and leaves it to the caller to read the answer.
sub send_body {
    my ($server, $body, %args) = @_;

    return client($server)->send_request('POST', $args{uri} // '/v1/completions',
                                         { model => 'demo', %$body });
}


# One request on a connection of its own; the answer as of Moe::Client::request.
sub post {
    my ($server, $uri, $body, %args) = @_;
    my $client = client($server, %{$args{client} // {}});
    my $answer = $client->request('POST', $uri, $body, %args);

    $client->close;
    return $answer;
}


sub completion {
    my ($server, $body, %args) = @_;

    return post($server, '/v1/completions', { model => 'demo', %$body }, %args);
}


# $messages: a list of messages, or the text of one user message.
sub chat {
    my ($server, $messages, $body, %args) = @_;

    $messages = [{ role => 'user', content => $messages }] unless ref $messages;
    return post($server, '/v1/chat/completions',
        { model => 'demo', temperature => 0, messages => $messages, %{$body // {}} }, %args);
}


sub get {
    my ($server, $uri, %args) = @_;
    my $client = client($server);
    my $answer = $client->get($uri, %args);

    $client->close;
    return $answer;
}


# Sends a streaming request; the client, its head read.  client => {...}: for Moe::Client->new.
sub stream {
    my ($server, $uri, $body, %args) = @_;
    my $client = client($server, %{$args{client} // {}});

    $client->send_request('POST', $uri, { model => 'demo', stream => \1, %$body }, %args);
    $client->read_head;
    return $client;
}


# A completion that runs for $tokens tokens, whatever the model says.
sub long_body {
    my ($tokens, %members) = @_;

    return { prompt => 'Syntax: gzip', max_tokens => $tokens, temperature => 0, ignore_eos => \1,
             %members };
}


# A stream that is certainly unfinished: the client has read its first event and reads no more, and
# the socket buffers on the way hold some ten kilobytes only.  uri => another route.
sub hold {
    my ($server, $body, %args) = @_;
    my $client = stream($server, $args{uri} // '/v1/completions', $body // long_body(1500), %args,
        client => { port => $server->{narrow_port}, receive_buffer => 2048,
                    %{$args{client} // {}} });

    push @{$client->{taken}}, $client->event // die "the stream ended at once\n";
    return $client;
}


# Reads a stream to its end: {events, text, texts, role, finish, finishes, usage, error, done,
# complete}.  `text` and `finish` are those of choice 0; `finishes` has a list for each choice.
sub collect {
    my ($client) = @_;
    my %result = (events => [], texts => {}, finishes => {}, done => 0, text => '');

    while (defined(my $data = @{$client->{taken} // []} ? shift @{$client->{taken}}
                                                        : $client->event)) {
        die "an event after [DONE]: $data\n" if $result{done};
        if ($data eq '[DONE]') {
            $result{done} = 1;
            next;
        }
        collect_event(\%result, decode_event($data));
    }
    $result{complete} = $client->{complete};
    $result{text} = $result{texts}{0} // '';
    $result{finish} = ($result{finishes}{0} // [])->[-1];
    return \%result;
}


# JSON::PP takes a millisecond for an event, and a stream's events differ in little but their text:
# what is around it is decoded once.
my ($frame, $frame_decoded) = ('', undef);
sub decode_event {
    my ($data) = @_;
    my ($before, $text, $after) = $data =~ /^(.*?"(?:text|content)":)("(?:[^"\\]|\\.)*+")(.*)$/s
        or return $json->decode($data);
    my $choice;

    if ($frame ne $before . $after) {
        $frame = $before . $after;
        $frame_decoded = $json->decode(qq($before""$after));
    }
    $choice = { %{$frame_decoded->{choices}[0] // return $json->decode($data)} };
    if ($choice->{delta}) {
        $choice->{delta} = { %{$choice->{delta}}, content => $json->decode($text) };
    } else {
        $choice->{text} = $json->decode($text);
    }
    return { %$frame_decoded, choices => [$choice] };
}


sub collect_event {
    my ($result, $event) = @_;

    push @{$result->{events}}, $event;
    $result->{error} = $event->{error} if $event->{error};
    $result->{usage} = $event->{usage} if $event->{usage};
    for my $choice (@{$event->{choices} // []}) {
        my $index = $choice->{index};
        my $text = $choice->{delta} ? $choice->{delta}{content} : $choice->{text};
        $result->{texts}{$index} .= $text // '';
        $result->{role} //= $choice->{delta}{role} if $choice->{delta};
        push @{$result->{finishes}{$index}}, $choice->{finish_reason}
            if defined $choice->{finish_reason};
    }
    return;
}


# A streaming request and its collected result.
sub collect_all {
    my ($server, $uri, $body, %args) = @_;
    my $client = stream($server, $uri, $body, %args);
    my $result = collect($client);

    $client->close;
    return $result;
}


# Sends all requests ([uri, body]) at the same time; their answers in the same order.
sub parallel {
    my ($server, @requests) = @_;
    my @clients = map { client($server) } @requests;
    my @answers;

    for my $i (0 .. $#requests) {
        my ($uri, $body) = @{$requests[$i]};
        $clients[$i]->send_request('POST', $uri, { model => 'demo', %$body });
    }
    for my $client (@clients) {
        push @answers, $client->read_answer;
        $client->close;
    }
    return @answers;
}


# What must be equal when the same request is answered again: everything but ids, times and cached
# tokens.
sub essence {
    my ($answer) = @_;

    return "status $answer->{status}: $answer->{body}" if $answer->{status} != 200;
    return $json->encode([$answer->{json}{choices}, counts($answer->{json}{usage})]);
}


# A usage but for what was found in the prefix cache.
sub counts {
    my ($usage) = @_;

    return $usage && { %$usage, prompt_tokens_details => undef };
}


# The samples of moe_metrics: {'name{labels}' => value}.
sub metrics {
    my ($server) = @_;
    my %samples;

    for my $line (split /\n/, get($server, '/metrics')->{body}) {
        next if $line =~ /^#/;
        my ($name, $value) = $line =~ /^([a-z0-9_]+(?:\{.*\})?) (\S+)$/ or die "no sample: $line\n";
        $samples{$name} = $value;
    }
    return \%samples;
}


# The sum of a metric over all its labels; undef when the worker that was asked knows no engine.
sub metric {
    my ($server, $name) = @_;
    my $samples = metrics($server);
    my @values = map { $samples->{$_} } grep { /^\Q$name\E(?:\{|$)/ } keys %$samples;
    my $sum;

    $sum += $_ for @values;
    return $sum;
}


sub running {
    my ($server) = @_;

    return metric($server, 'moe_num_requests_running') // -1;
}


sub waiting {
    my ($server) = @_;

    return metric($server, 'moe_num_requests_waiting') // -1;
}


# Does the engine have nothing left to do within $timeout seconds?
sub idle {
    my ($server, $timeout) = @_;

    return wait_until($timeout // 2, sub { running($server) == 0 && waiting($server) == 0 }) // 0;
}


# The output of a moe-engine command; dies when it fails.
sub engine_command {
    my (@arguments) = @_;

    open my $out, '-|', "$Moe::Server::BUILD/moe-engine", @arguments or die "moe-engine: $!";
    local $/;
    my $text = <$out>;
    close $out or die "moe-engine @arguments: exit status $?";
    return $text;
}


# The token ids of a text, the beginning-of-text token included.
sub tokenize {
    my ($text) = @_;

    utf8::encode($text) if utf8::is_utf8($text);
    return @{$json->decode(engine_command('tokenize', $Moe::Server::MODEL, $text))->{tokens}};
}

1;
