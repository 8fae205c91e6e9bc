# A real Prometheus (Debian's) with conf/prometheus.yml scrapes the server, and every query of
# conf/grafana-dashboard.json has an answer in it.

use lib 't/lib';
use Moe::Test;

my $server = server();
my $port = Moe::Server::free_port();
my $prometheus;

END {
    local $?;
    if ($prometheus) {
        kill 'KILL', $prometheus;
        waitpid $prometheus, 0;
    }
}

sub start_prometheus {
    my $config = file_content("$Moe::Server::ROOT/conf/prometheus.yml");

    $config =~ s/127\.0\.0\.1:8080/127.0.0.1:$server->{port}/ or die "no target in it\n";
    $config =~ s/scrape_interval: \K15s/1s/ or die "no interval in it\n";
    my $file = $server->write_file('prometheus.yml', $config);
    my $log = "$server->{prefix}/prometheus.log";
    $prometheus = fork() // die "fork: $!";
    if ($prometheus == 0) {
        open STDOUT, '>', $log;
        open STDERR, '>&', \*STDOUT;
        exec 'prometheus', "--config.file=$file", "--web.listen-address=127.0.0.1:$port",
            "--storage.tsdb.path=$server->{prefix}/prometheus" or POSIX::_exit(127);
    }
    wait_until(20, sub { eval { ask('/-/ready')->{status} == 200 } })
        or die "prometheus does not start (Debian's package prometheus)\n",
            $server->log_text('prometheus.log');
    return;
}

sub ask {
    my ($uri) = @_;
    my $client = Moe::Client->new(port => $port);
    my $answer = $client->get($uri);

    $client->close;
    return $answer;
}

sub escape {
    return $_[0] =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger;
}

# The values of an expression now; dies when Prometheus does not understand it.
sub values_of {
    my ($expression) = @_;
    my $answer = ask('/api/v1/query?query=' . escape($expression))->{json};

    die "$expression: $answer->{error}\n" unless $answer->{status} eq 'success';
    return map { $_->{value}[1] } @{$answer->{data}{result}};
}

# The page itself, as Prometheus' own tool wants it.
completion($server, long_body(10));
open my $tool, '|-', "promtool check metrics >$server->{prefix}/promtool.log 2>&1"
    or die "promtool: $!";
print $tool get($server, '/metrics')->{body};
close $tool;
is(file_content("$server->{prefix}/promtool.log"), '', 'promtool has no complaint');

start_prometheus();
ok(wait_until(20, sub { grep { $_ == 1 } values_of('up{job="moe"}') }), 'the server is scraped');

# The dashboard, as Grafana would ask for it.
my $dashboard = json_decode(file_content("$Moe::Server::ROOT/conf/grafana-dashboard.json"));
my %queries;
for my $panel (@{$dashboard->{panels}}) {
    for my $target (@{$panel->{targets} // []}) {
        my $expression = $target->{expr};
        $expression =~ s/\$(?:model|instance)\b/.*/g;
        $expression =~ s/\$__rate_interval\b/1m/g;
        unlike($expression, qr/\$/, "$panel->{title} $target->{refId}: variables are known");
        $queries{"$panel->{title} $target->{refId}"} = $expression;
    }
}
cmp_ok(keys %queries, '>', 30, 'queries');

# Traffic, until every query has a number.
my %open = %queries;
wait_until(40, sub {
    chat($server, 'What is the default of keepalive_timeout?');
    completion($server, long_body(20));
    completion($server, { prompt => 5 });
    for my $name (keys %open) {
        delete $open{$name} if grep { /^[-+0-9.e]+$/ } values_of($open{$name});
    }
    return !%open;
});
is_deeply(\%open, {}, 'every query of the dashboard has data');
for my $variable (grep { $_->{type} eq 'query' } @{$dashboard->{templating}{list}}) {
    my ($metric, $label) = $variable->{query} =~ /^label_values\((\w+), (\w+)\)$/;
    my $answer = ask("/api/v1/label/$label/values?match[]=$metric");
    is(scalar @{$answer->{json}{data}}, 1, "variable $variable->{name} has a value");
}

# What is stored is what was served.
ok(idle($server), 'idle');
for my $name (qw(moe_generation_tokens_total moe_e2e_request_latency_seconds_count
                 moe_request_prompt_tokens_sum)) {
    my $value = metric($server, $name);
    ok(wait_until(10, sub { grep { $_ == $value } values_of($name) }), "$name: $value");
}
cmp_ok((values_of($queries{'Time to first token A'}))[0], '<',
       (values_of($queries{'Whole requests A'}))[0], 'a first token comes before the last one');

finish();
