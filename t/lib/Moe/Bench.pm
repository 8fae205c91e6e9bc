package Moe::Bench;

# What the measurements of t/bench share.

use strict;
use warnings;

use parent 'Exporter';

use Moe::Server;
use Moe::Test;

our @EXPORT = qw(machine quantile load start_load load_result);


# One line that says what this was measured on.
sub machine {
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

    open my $out, '-|', "$Moe::Server::BUILD/load", '--json', '--model', 'demo', @arguments,
        "http://127.0.0.1:$server->{port}$route" or die "load: $!";
    return $out;
}


# Waits for a generator's end; what it has found, as of --json.
sub load_result {
    my ($out) = @_;

    local $/;
    my $text = <$out>;
    close $out or die "load: exit status $?\n$text";
    return json_decode($text);
}

1;
