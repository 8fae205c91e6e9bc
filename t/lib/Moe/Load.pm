package Moe::Load;

# Clients by the dozen, for t/nightly: processes of their own that ask again and again, and what
# must be equal when a request is answered again.
#
# A client process is one function that makes one request and returns what came of it, called until
# the parent says stop.  What it returns goes, a line of JSON each, to one file that all of them
# append to.  A client that dies is a finding, too: {died => why}.

use strict;
use warnings;

use parent 'Exporter';
use JSON::PP ();
use List::Util qw(sum0);
use POSIX ();
use Time::HiRes qw(time);

our @EXPORT = qw(start_clients stop_clients stream_essence resident_kilobytes cpu_seconds
                 memory_line);

my $json = JSON::PP->new->utf8->canonical;


# Starts $count processes; each calls $one->() until it is told to stop, with random numbers of its
# own that follow from those of the parent.
sub start_clients {
    my ($server, $count, $one) = @_;
    my $load = { path => "$server->{prefix}/clients.log", pids => [] };

    unlink $load->{path};
    for (1 .. $count) {
        my $seed = int rand 2 ** 31;
        my $pid = fork() // die "fork: $!";
        if ($pid == 0) {
            srand $seed;
            run_client($load->{path}, $one);
            POSIX::_exit(0);
        }
        push @{$load->{pids}}, $pid;
    }
    return $load;
}


sub run_client {
    my ($path, $one) = @_;
    my $stop;

    local $SIG{TERM} = sub { $stop = 1 };
    local $SIG{ALRM} = 'DEFAULT';
    open my $out, '>>', $path or POSIX::_exit(1);
    until ($stop) {
        my $start = time;
        my $result = eval { $one->() } // { died => "$@" };
        syswrite $out, $json->encode({ start => $start, end => time, %$result }) . "\n";
    }
    return;
}


# Lets every client finish its request; what all of them reported, in the order of their ends.
sub stop_clients {
    my ($load) = @_;

    kill 'TERM', @{$load->{pids}};
    waitpid $_, 0 for @{$load->{pids}};
    open my $file, '<', $load->{path} or die "$load->{path}: $!";
    return map { $json->decode($_) } <$file>;
}


# A stream, its head read, to its end; what must be equal when it is asked for again: everything but
# ids, times and which of several choices is ahead.  {choices: {index => events}, rest, complete}
sub stream_essence {
    my ($client) = @_;
    my (%events, @rest);

    while (defined(my $event = $client->event)) {
        $event =~ s/"(?:id":"[^"]*"|(?:created|cached_tokens)":\d+)//g;
        if ($event =~ /"index":(\d+)/) {
            push @{$events{$1}}, $event;
        } else {
            push @rest, $event;
        }
    }
    return { choices => { map { $_ => join "\n", @{$events{$_}} } keys %events },
             rest => join("\n", @rest), complete => $client->{complete} ? 1 : 0 };
}


sub resident_kilobytes {
    my ($pid) = @_;

    open my $file, '<', "/proc/$pid/status" or return 0;
    local $/;
    return (<$file> // '') =~ /^VmRSS:\s*(\d+) kB/m ? $1 : 0;
}


# User and system time of the processes together.
sub cpu_seconds {
    my $ticks = 0;

    for my $pid (@_) {
        open my $file, '<', "/proc/$pid/stat" or die "process $pid is gone\n";
        $ticks += sum0((split ' ', <$file> =~ s/.*\) //r)[11, 12]);
    }
    return $ticks / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}


# Memory of a server's processes: ({master, workers, engine} in kilobytes, a line that says so).
# `workers` are those that accept connections, together.
sub memory_line {
    my ($server) = @_;
    my %memory = (
        master => resident_kilobytes($server->{master}),
        workers => sum0(map { resident_kilobytes($_) } $server->worker_pids),
        engine => resident_kilobytes($server->engine_pid // 0),
    );

    return (\%memory, join ', ', map { "$_ $memory{$_} KB" } sort keys %memory);
}

1;
