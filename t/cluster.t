# conf/cluster.conf in front of two nodes with conf/cluster-node.conf, TLS between them: nodes are
# drained, killed and brought back under load.  Both give the same bytes, so nobody can tell.

use lib 't/lib';
use Moe::Load;
use Moe::Test;

use constant { TOKENS => 400, STREAMS => 32 };

my $tls = File::Temp::tempdir('moe-test-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $long = long_body(TOKENS);
my $short = long_body(20);
my @via = (client => { tls => 1 });

sub openssl {
    my ($command) = @_;

    system("cd $tls && openssl $command 2>>openssl.log") == 0
        or die file_content("$tls/openssl.log");
    return;
}

sub make_certificates {
    my $key = '-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch';

    openssl("req -x509 $key -days 2 -subj /CN=cluster -keyout ca.key -out cluster-ca.pem");
    for my $name ('node', 'balancer') {
        openssl("req $key -subj /CN=$name -addext subjectAltName=DNS:$name.cluster.internal"
            . " -keyout $name.key -out $name.csr");
        openssl("x509 -req -in $name.csr -CA cluster-ca.pem -CAkey ca.key -CAcreateserial"
            . " -days 2 -copy_extensions copy -out $name.pem");
    }
    openssl("req -x509 $key -days 2 -subj /CN=llm.example.com -keyout privkey.pem"
        . ' -out fullchain.pem');
    return;
}

# What the tests add: a name in the answers, a rate that keeps streams of TOKENS tokens from being
# over before something happens to them, and refusals by nodes that a request names.
sub start_node {
    my ($number, $rate) = @_;

    return server(tls_port => Moe::Server::free_port(), template => sample('cluster-node.conf',
        '/etc/nginx/tls' => $tls,
        '/usr/local/sbin/moe-engine' => '%ENGINE%',
        '/srv/models/DeepSeek-V2-Lite-Chat {' => '%MODEL% { threads %THREADS%;',
        '16384' => '%CONTEXT%',
        '4g;' => '64m;',
        'gpt-4o-mini' => 'demo',
        'listen 8443' => 'listen 127.0.0.1:%TLS_PORT%',
        'listen 8080' => 'listen 127.0.0.1:%PORT%',
        'moe_pass       chat;' => "moe_pass chat; add_header X-Node $number always;"
            . " limit_rate_after 20k; limit_rate $rate;"
            . join('', map { " if (\$http_x_refuse ~ '$_.*$number') { return $_; }" } 429, 503),
    ));
}

make_certificates();
my @nodes = (start_node(1, '2k'), start_node(2, '20k'));
my $balancer = server(ready => 0, template => sample('cluster.conf',
    '/etc/nginx/tls' => $tls,
    'listen 443' => 'listen 127.0.0.1:%PORT%',
    '10.0.0.2:8443' => "127.0.0.1:$nodes[0]{tls_port}",
    '10.0.0.3:8443' => "127.0.0.1:$nodes[1]{tls_port}",
));

sub ask {
    my ($body, %headers) = @_;

    return completion($balancer, $body, @via, headers => \%headers);
}

# Streams, each with its first event read: ([node, client], ...).
sub open_streams {
    my ($count) = @_;

    my @clients = map {
        client($balancer, tls => 1)->send_request('POST', '/v1/completions',
                                                  { model => 'demo', stream => \1, %$long });
    } 1 .. $count;

    return map {
        my $head = $_->read_head;
        push @{$_->{taken}}, $_->event // die "the stream ended at once\n";
        [$head->{headers}{'x-node'}, $_];
    } @clients;
}

sub of_node {
    my ($node, @streams) = @_;

    return map { $_->[1] } grep { $_->[0] == $node } @streams;
}

# How each of these streams ended.
sub ends {
    my @clients = @_;
    my @ends;

    for my $client (@clients) {
        my $result = eval { collect($client) } // { text => "died: $@" };
        $result->{node_gone} = ($result->{error} // {})->{code} // '';
        push @ends, $result;
        $client->close;
    }
    return @ends;
}

sub are_whole {
    my ($expected, $name, @ends) = @_;

    is(scalar(grep { $_->{text} ne $expected } @ends), 0, "$name: the whole text");
    return is(scalar(grep { !$_->{done} || !$_->{complete} || $_->{error} } @ends), 0,
              "$name: a proper end");
}

# Both nodes serve, and the same.
my %answer;
wait_until(20, sub {
    my $answer = ask($short);
    $answer{$answer->{headers}{'x-node'}} = $answer;
    return keys %answer == 2;
});
is_deeply([sort keys %answer], [1, 2], 'both nodes get requests');
is(essence($answer{1}), essence($answer{2}), 'and answer the same');
my $text = $answer{1}{json}{choices}[0]{text};
my @streams = open_streams(8);
is(scalar(of_node($_, @streams)), 4, "node $_ has half of the streams") for 1, 2;
my ($whole) = ends(of_node(2, @streams));
my $expected = $whole->{text};
is($whole->{usage} // $whole->{finish}, 'length', 'a whole stream');
$_->[1]->close for @streams;

# Who may talk to a node, and what goes along.
my $stranger = get($nodes[0], '/v1/models');
is($stranger->{status}, 404, "the operator's port serves no API");
$stranger = Moe::Client->new(port => $nodes[0]{tls_port}, tls => 1)->get('/v1/models');
is($stranger->{status}, 400, 'a node wants the certificate of the balancer');
my ($id) = $balancer->log_text('access.log') =~ /id=(\w{32}) node=/;
ok(wait_until(5, sub { grep { $_->log_text('access.log') =~ / id=$id / } @nodes }),
   "a node's log has the balancer's id");

# A node that refuses: the other one is asked; both: the client is told.
for my $status (429, 503) {
    is(ask($short, 'X-Refuse' => "$status by 1")->{headers}{'x-node'}, 2, "$status by node 1");
    is(ask($short, 'X-Refuse' => "$status by 2")->{headers}{'x-node'}, 1, "$status by node 2");
    is(ask($short, 'X-Refuse' => "$status by 12")->{status}, $status, "$status by both") for 1 .. 3;
    is(ask($short)->{status}, 200, 'which takes nobody out');
}

# From here on, clients who never stop asking.
my $load = start_clients($balancer, 2, sub {
    my $answer = ask($short);

    sleep(0.1);
    return { status => $answer->{status}, node => $answer->{headers}{'x-node'},
             same => ($answer->{json}{choices}[0]{text} // '') eq $text ? 1 : 0 };
});

sub comes_back {
    my ($number) = @_;

    $nodes[$number - 1]->start(ready => 0);
    return ok(wait_until(30, sub { (ask($short)->{headers}{'x-node'} // 0) == $number }),
              "node $number comes back and is asked again");
}

# A node quits: its streams go on to their ends.
@streams = open_streams(8);
$nodes[1]->signal('QUIT');
are_whole($expected, "a node that quits", ends(of_node(2, @streams)));
ok($nodes[1]->gone(20), 'then it is gone');
$_->[1]->close for @streams;
is(ask($short)->{headers}{'x-node'}, 1, 'the other node does all');
comes_back(2);

# A node is killed: its streams, and no others, lose what was not sent.
@streams = open_streams(STREAMS);
cmp_ok(scalar(of_node($_, @streams)), '>', STREAMS / 4, "node $_ has its share") for 1, 2;
# Of a worker that outlives its master for a moment.
$nodes[0]->expect(qr/recvmsg\(\) failed \(104/);
$nodes[0]->kill_all;
my @ends = ends(of_node(1, @streams));
is(scalar(grep { $_->{node_gone} ne 'service_unavailable' || !$_->{done} || !$_->{complete} }
          @ends), 0, 'each of its streams ends with an error event');
is(scalar(grep { $_->{finish} || $_->{text} eq '' || index($expected, $_->{text}) != 0 } @ends), 0,
   'and is the beginning of the text');
are_whole($expected, 'the other node', ends(of_node(2, @streams)));
comes_back(1);

my @reports = stop_clients($load);
is_deeply([grep { !$_->{same} || $_->{status} != 200 } @reports], [], 'no other request has failed');
my %asked;
$asked{$_->{node}}++ for @reports;
cmp_ok($asked{$_} // 0, '>', 10, "node $_ had requests") for 1, 2;

# Nobody is left.
$_->signal('QUIT') for @nodes;
ok($_->gone(10), 'a node is gone') for @nodes;
my $nobody = ask($short);
is($nobody->{status}, 503, 'no node');
is($nobody->{headers}{'retry-after'}, 2, 'try again later');
is($nobody->{json}{error}{code}, 'service_unavailable', 'in words that clients understand');

finish();
