# perl -It/lib t/nightly/endurance.pl [SECONDS [SEED]]: random requests of all kinds for SECONDS
# (600), clients that leave or stand still, reloads, killed workers and engines.
#
# What a request must give is known before: each is answered once by the quiet server.  Then an
# answer is the same; or it ends with an error in its form, and what came before the error is the
# beginning of the same answer; or its worker was killed.  Anything else is a finding.  The same
# SEED gives every client the same requests and whims, the operator the same deeds; what meets what
# is a matter of time.

use lib 't/lib';
use Moe::Load;
use Moe::Test;
use Socket qw(SOL_SOCKET SO_RCVBUF);

use constant { CLIENTS => 16, KINDS => 120 };

my ($seconds, $seed) = @ARGV;
$seconds //= 600;
$seed //= time % 1e6 | 0;
diag("$seconds seconds, seed $seed");
alarm 2 * $seconds + 600;

my $server = server(model_block => 'batch_sequences 12; queue 14; kv_cache 64m;',
    location => 'moe_ping 500ms;', http => 'send_timeout 20s;');
my @topics = qw(gzip listen root proxy_pass ssl_crl server_name keepalive_timeout sendfile);

srand $seed;


sub any {
    return $_[rand @_];
}


sub random_prompt {
    my $topic = any(@topics);

    return any("Syntax: $topic", "Default: $topic\n" x (1 + rand 40),
        [map { 6 + int rand 2000 } 1 .. 1 + rand 300], ["Syntax: $topic", "Default: $topic", 'a'],
        "\x{1f600} \x{e4}\x{301} $topic ");
}


# Members that both routes take.
sub random_members {
    my %members = (max_tokens => any(1, 5, 40, 200, 600), seed => int rand 1000,
        temperature => any(0, 0, 0.7, 1.3));

    $members{ignore_eos} = \1 if rand() < 0.6;
    $members{stop} = any('gzip', ["\n", 'never'], ["e\n", "\nContext: "]) if rand() < 0.3;
    $members{n} = any(2, 3) if rand() < 0.15;
    $members{top_p} = 0.9 if rand() < 0.2;
    $members{presence_penalty} = 1 if rand() < 0.2;
    $members{logit_bias} = { 300 => 5, 301 => -100 } if rand() < 0.1;
    if (rand() < 0.5) {
        $members{stream} = \1;
        $members{stream_options} = { include_usage => \1 } if rand() < 0.5;
    }
    return %members;
}


# [uri, body]
sub random_request {
    my %members = random_members();

    $members{any(qw(temperature max_tokens n stop))} = any('x', -1, {}) if rand() < 0.05;
    if (rand() < 0.4) {
        my @messages = map {
            +{ role => $_ % 2 ? 'user' : 'assistant', content => 'What is ' . any(@topics) . '?' }
        } 1 .. any(1, 1, 3);
        $members{logprobs} = \1 if rand() < 0.3;
        return ['/v1/chat/completions', { model => 'demo', %members, messages => \@messages }];
    }
    $members{logprobs} = any(0, 3) if rand() < 0.3;
    $members{echo} = \1 if rand() < 0.2;
    $members{return_token_ids} = \1 if rand() < 0.1;
    return ['/v1/completions', { model => 'demo', %members, prompt => random_prompt() }];
}


# The whole answer: {status, stream => as of stream_essence, or text}.
sub read_whole {
    my ($client) = @_;
    my $head = $client->read_head;

    if (($head->{headers}{'content-type'} // '') =~ m{^text/event-stream}) {
        return { status => $head->{status}, stream => stream_essence($client) };
    }
    my $body = $client->read_body;
    my $json = eval { json_decode($body) };
    return { status => $head->{status}, complete => $client->{complete} ? 1 : 0,
             error => ($json // {})->{error}, retry_after => $head->{headers}{'retry-after'},
             text => $head->{status} == 200 && $json ? json_encode([$json->{choices}, counts($json->{usage})])
                                                     : $body };
}


sub ask {
    my ($request, %args) = @_;

    return client($server, timeout => 90, %args)->send_request('POST', @$request);
}


sub is_error_form {
    my ($error, $status) = @_;

    my $type = $status == 429 ? 'rate_limit_exceeded' : 'service_unavailable';

    return ref $error eq 'HASH' && length($error->{message} // '') > 5
           && ($error->{type} // '') eq $type;
}


# What an answer is, next to that of the solo run: "same", "refused", "failed", or what is wrong.
sub judge {
    my ($got, $solo) = @_;

    return 'same' if json_encode($got) eq json_encode($solo);
    return judge_stream($got->{stream}, $solo->{stream}) if $got->{stream} && $solo->{stream};
    return 'cut' if !$got->{stream} && !$got->{complete};
    if ($got->{status} == 429 || $got->{status} == 503) {
        return 'an error without its form' unless is_error_form($got->{error}, $got->{status});
        return 'no Retry-After' unless ($got->{retry_after} // '') =~ /^\d+$/;
        return "refused $got->{status}";
    }
    return 'different';
}


sub judge_stream {
    my ($got, $solo) = @_;
    my $done = $got->{rest} =~ s/\n?\[DONE\]$//;
    my ($event) = $got->{rest} =~ /(\{.*"error":.*\})$/m;

    for my $index (keys %{$got->{choices}}) {
        my $part = $got->{choices}{$index};
        return "choice $index is not the beginning of its solo run"
            if substr($solo->{choices}{$index} // '', 0, length $part) ne $part;
    }
    return 'cut' unless $got->{complete};
    return 'neither whole nor an error' unless $event;
    return 'an error without its form' unless is_error_form(json_decode($event)->{error}, 503);
    return $done ? 'failed' : 'no [DONE] after an error';
}


# One request of a client with its whim.
sub one_request {
    my (@catalogue) = @_;
    my $number = int rand @catalogue;
    my ($request, $solo) = @{$catalogue[$number]};
    my $whim = any(qw(reads reads reads reads leaves resets stalls stalls_and_leaves));
    my $pause = rand() < 0.5 ? rand 0.05 : rand 3;
    my $narrow = $whim =~ /^stalls/;
    my $client = ask($request,
        $narrow ? (port => $server->{narrow_port}, receive_buffer => 2048) : ());
    my %result = (request => $number, whim => $whim);

    sleep($pause) if $whim ne 'reads';
    if ($whim eq 'reads' || $whim eq 'stalls') {
        setsockopt($client->{socket}, SOL_SOCKET, SO_RCVBUF, 1 << 20) if $narrow;
        my $got = eval { read_whole($client) };
        $result{kind} = $got ? judge($got, $solo) : $@ =~ /closed before/ ? 'cut' : "died: $@";
        $result{worker} = ($client->{head} // {})->{headers}{'x-worker'};
        $result{got} = $got if $result{kind} !~ /^(?:same|refused|failed|cut)/;
    } else {
        $result{kind} = 'left';
    }
    $whim eq 'resets' ? $client->abort : $client->close;
    return \%result;
}


# Reloads and kills until the time is over: {what => times} and, of killed workers,
# {pid => [not before, not after]}.
sub operate {
    my ($end) = @_;
    my (%count, %killed, $next_engine);

    while (time < $end) {
        sleep(0.5 + rand 2);
        my $deed = any(qw(reload reload worker engine nothing));
        if ($deed eq 'reload') {
            $server->signal('HUP');
        } elsif ($deed eq 'worker') {
            my @pids = grep { $_->{title} =~ /^nginx: worker/ } $server->processes or next;
            my $pid = any(@pids)->{pid};
            my $before = time;
            $killed{$pid} = [$before, time] if $server->signal('KILL', $pid);
        } elsif ($deed eq 'engine') {
            # An engine that dies over and over is respawned later and later.
            my $pid = $server->engine_pid;
            next if !$pid || time < ($next_engine // 0);
            $next_engine = time + 5 + rand 20;
            $server->signal('KILL', $pid);
        }
        $count{$deed}++;
    }
    return (\%count, \%killed);
}


# A cut answer is no fault when its worker was killed meanwhile.
sub excuse {
    my ($result, $killed) = @_;
    my $worker = $result->{worker};
    my @times = grep { $_->[1] > $result->{start} - 0.1 && $_->[0] < $result->{end} + 0.1 }
        $worker ? grep { defined } $killed->{$worker} : values %$killed;

    $result->{kind} = 'cut with its worker' if @times;
    return;
}

my @catalogue = map { [random_request()] } 1 .. KINDS;
for my $entry (@catalogue) {
    push @$entry, read_whole(ask($entry->[0]));
}
my %statuses;
$statuses{$_->[1]{status}}++ for @catalogue;
diag('solo runs: ' . json_encode(\%statuses));
is(scalar(grep { $_->[1]{status} !~ /^(?:200|400)$/ } @catalogue), 0, 'solo runs');

# Each must be the same when asked again, or the rest means nothing.
my @unstable = grep { judge(read_whole(ask($catalogue[$_][0])), $catalogue[$_][1]) ne 'same' }
    0 .. $#catalogue;
is("@unstable", '', 'solo runs are the same again');
diag('before: ' . (memory_line($server))[1]);

my $load = start_clients($server, CLIENTS, sub { one_request(@catalogue) });
my ($deeds, $killed) = operate(time + $seconds);
my @results = stop_clients($load);

my (%kinds, @faults);
for my $result (@results) {
    $result->{kind} //= "died: $result->{died}";
    excuse($result, $killed) if $result->{kind} eq 'cut';
    $kinds{$result->{kind}}++;
    push @faults, $result
        unless $result->{kind} =~ /^(?:same|left|failed|refused \d+|cut with its worker)$/;
}
diag("operator: ", json_encode($deeds));
diag('answers: ', json_encode(\%kinds), ', resumed: ',
    metric($server, 'moe_requests_resumed_total'));
cmp_ok($kinds{same} // 0, '>', @results / 4, 'most clients that stay are served');
is(scalar @faults, 0, @results . ' requests without a fault');
for my $fault (splice @faults, 0, 5) {
    my ($request, $solo) = @{$catalogue[$fault->{request} // 0]};
    diag(map { substr(json_encode($_), 0, 1500) . "\n" } $request, $fault, $solo);
}
ok($server->wait_ready(60), 'the engine serves');
ok(idle($server, 10), 'nothing runs, nothing waits');
ok(wait_until(20, sub { !grep { $_->{title} =~ /shutting down/ } $server->processes }),
   'no worker is left of a reload');
diag('after: ' . (memory_line($server))[1]);
$server->expect(qr/worker process \d+ exited on signal 9/, qr/moe.*exited on signal 9/);
finish();
