package Moe::Bench;

# What the measurements of t/bench share.

use strict;
use warnings;

use parent 'Exporter';

use Moe::Server;
use Moe::Test;

our @EXPORT = qw(machine quantile start_load load_result stop_load);

$| = 1;     # a line is seen when it is there


# Begins a measurement, which takes as long as it takes, unlike a test.  One line that says what this
# is measured on.
sub machine {
    alarm 0;
    my ($model) = file_content('/proc/cpuinfo') =~ /^model name\s*:\s*(.*)/m;
    my ($load) = file_content('/proc/loadavg') =~ /^(\S+)/;
    my $cpus = () = file_content('/proc/cpuinfo') =~ /^processor/mg;

    return "$cpus x $model, load $load";
}


sub quantile {
    my ($share, @values) = @_;

    @values = sort { $a <=> $b } @values;
    return $values[int($share * $#values + 0.5)];
}


# Starts the load generator at a route of a server; what comes of it is said by load_result.
sub start_load {
    my ($server, $route, @arguments) = @_;
    my $pid = open(my $out, '-|', "$Moe::Server::BUILD/load", '--json', '--model', 'demo',
        @arguments, "http://127.0.0.1:$server->{port}$route") or die "load: $!";

    return { pid => $pid, out => $out };
}


# Waits for a generator's end; what it has found, as of --json.  Failed requests are fatal.
sub load_result {
    my ($load) = @_;
    my $out = $load->{out};

    local $/;
    my $result = json_decode(<$out> || die "load has failed\n");
    close $out;
    die 'load: ' . json_encode($result->{errors}) . "\n" if $result->{failed};
    return $result;
}


# Ends a generator where it is; what it has found.
sub stop_load {
    my ($load) = @_;

    kill 'TERM', $load->{pid};
    return load_result($load);
}

1;
