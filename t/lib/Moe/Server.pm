package Moe::Server;

# One nginx with the module and its engine, in a temporary prefix of its own.
#
# The master is started in a new session, so whatever it forks is found by its session id, also when
# the master was killed: that is how a test asks for the engine's or the workers' pids, and how the
# final checks know that nothing was left behind.  A free port is reserved by binding an abstract
# Unix socket named after it: such a name is exclusive among all running tests and vanishes with the
# process.  Every wait ends by a deadline; TEST_SLOW (a factor) stretches all of them.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use POSIX qw(WNOHANG);
use Socket;
use Time::HiRes qw(time sleep);

use Moe::Client;

our $ROOT = abs_path(dirname(__FILE__) . '/../../..');
our $BUILD = abs_path_of($ENV{BUILD} || 'build');
our $NGINX = $ENV{TEST_NGINX} || '/usr/sbin/nginx';
our $MODEL = "$ROOT/conf/models/nginx-directives-moe";
our $SLOW = $ENV{TEST_SLOW} || 1;

# The run-time library of a sanitizer that the module is built with and nginx is not.  Leaks are for
# the unit tests to find: a process that has changed its user cannot look at itself.
our @PRELOAD = $ENV{TEST_PRELOAD}
    ? ('env', "LD_PRELOAD=$ENV{TEST_PRELOAD}", 'ASAN_OPTIONS=detect_leaks=0') : ();

# What no error.log may hold, whatever was tested.
my $FORBIDDEN = qr/\[(?:alert|emerg|crit)\]|open\ socket\ \#\d+\ left|exited\ on\ signal
    |Sanitizer|runtime\ error:/x;

my $TEMPLATE = <<'END';
%USER%
load_module %BUILD%/ngx_http_moe_module.so;
error_log %PREFIX%/error.log info;
pid %PREFIX%/nginx.pid;
daemon %DAEMON%;
worker_processes %WORKERS%;
%MAIN%

events {
    worker_connections %CONNECTIONS%;
}

http {
    client_body_temp_path %PREFIX%/client_body;
    proxy_temp_path %PREFIX%/proxy;
    fastcgi_temp_path %PREFIX%/fastcgi;
    uwsgi_temp_path %PREFIX%/uwsgi;
    scgi_temp_path %PREFIX%/scgi;
    access_log %PREFIX%/access.log;
    moe_engine_path %ENGINE%;
    moe_model demo %MODEL% {
        device cpu;
        threads %THREADS%;
        context %CONTEXT%;
        %MODEL_BLOCK%
    }
    %HTTP%

    server {
        listen 127.0.0.1:%PORT% %LISTEN%;
        listen 127.0.0.1:%NARROW_PORT% sndbuf=4k;
        add_header X-Worker $pid;
        %SERVER%

        location / {
            moe_pass demo;
            %LOCATION%
        }

        location = /status {
            moe_status;
        }

        location = /metrics {
            moe_metrics;
        }
    }
}
END

my @reserved;    # sockets that hold the names of our ports


sub abs_path_of {
    my ($path) = @_;

    return $path =~ m{^/} ? $path : "$ROOT/$path";
}


# A TCP port that no other test takes while this process lives.
sub free_port {
    for (1 .. 500) {
        my $port = 12000 + int(rand(18000));
        my ($name, $probe);

        socket($name, PF_UNIX, SOCK_STREAM, 0) or die "socket: $!";
        bind($name, pack_sockaddr_un("\0moe-test-port-$port")) or next;
        socket($probe, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
        setsockopt($probe, SOL_SOCKET, SO_REUSEADDR, 1);
        bind($probe, pack_sockaddr_in($port, INADDR_LOOPBACK)) or next;
        push @reserved, $name;
        return $port;
    }
    die "no free port";
}


# The true value of $condition->() as soon as it has one, or nothing after $timeout seconds.
sub wait_until {
    my ($timeout, $condition) = @_;
    my $deadline = time() + $timeout * $SLOW;

    while (1) {
        my $value = $condition->();
        return $value if $value;
        return if time() > $deadline;
        sleep(0.02);
    }
}


# Arguments replace the placeholders of the template: engine, model, model_block, context, threads,
# http, server, location, listen, main, workers, connections, daemon; `template` replaces it whole.
# slow => 1 gives an engine of portable C, some tens of tokens per second, for requests that are to
# last.
sub new {
    my ($class, %args) = @_;
    my $prefix = tempdir('moe-test-XXXXXX', TMPDIR => 1);
    my $self = bless {
        prefix => $prefix,
        owner => $$,
        port => free_port(),
        narrow_port => free_port(),
        expected => [],
        engine => "$BUILD/moe-engine", model => $MODEL, threads => $ENV{TEST_THREADS} || 1,
        context => 2048, workers => 2, connections => 1024, daemon => 'off',
        map({ $_ => '' } qw(model_block http server location listen main)),
        template => $TEMPLATE,
        %args,
    }, $class;

    chmod 0755, $prefix;
    $self->write_config;
    return $self;
}


# Workers run as nobody when the project's files can be reached by nobody.
sub user_directive {
    my ($prefix) = @_;

    return '' if $> != 0;
    for my $path ($BUILD, $MODEL, $prefix) {
        for (my $dir = $path; ; $dir = dirname($dir)) {
            return 'user root;' unless ((stat $dir)[2] // 0) & 0001;
            last if $dir eq '/';
        }
    }
    return 'user nobody ' . getgrgid((getpwnam('nobody'))[3]) . ';';
}


# (Re)writes nginx.conf; arguments as for new.
sub write_config {
    my ($self, %args) = @_;
    my $text;

    @$self{keys %args} = values %args;
    $text = $self->{template};
    my %value = (
        (map { uc $_ => $self->{$_} } grep { !ref $self->{$_} } keys %$self),
        BUILD => $BUILD, USER => user_directive($self->{prefix}),
    );
    1 while $text =~ s/%([A-Z0-9_]+)%/$value{$1} \/\/ die "no value for $1"/e;
    $self->write_file('nginx.conf', $text);
    return $self;
}


# The bytes of `content` as a file; returns its path.
sub save_file {
    my ($path, $content) = @_;

    open my $file, '>:raw', $path or die "$path: $!";
    print $file $content;
    close $file or die "$path: $!";
    return $path;
}


# Into the prefix; returns its path.
sub write_file {
    my ($self, $name, $content) = @_;

    return save_file("$self->{prefix}/$name", $content);
}


# Writes cert.pem and key.pem into the prefix.
sub make_certificate {
    my ($self) = @_;
    my $prefix = $self->{prefix};

    system("openssl req -x509 -newkey rsa:2048 -nodes -batch -days 2 -subj /CN=localhost"
        . " -keyout $prefix/key.pem -out $prefix/cert.pem 2>$prefix/openssl.log") == 0
        or die $self->log_text('openssl.log');
    return;
}


sub command {
    my ($self, @options) = @_;
    my $prefix = $self->{prefix};

    return (@PRELOAD, $NGINX, '-p', $prefix, '-c', "$prefix/nginx.conf", '-e', "$prefix/error.log",
            @options);
}


# nginx -t, or another option: (exit status, what it printed).
sub check_config {
    my ($self, $option) = @_;
    my $pid = open(my $out, '-|') // die "fork: $!";

    if ($pid == 0) {
        open STDERR, '>&', \*STDOUT;
        exec $self->command($option // '-t') or POSIX::_exit(127);
    }
    my $text = join '', <$out>;
    close $out;
    return ($? >> 8, $text);
}


# Starts nginx and waits until the engine serves; `ready => 0`: until the port listens.
sub start {
    my ($self, %args) = @_;
    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        POSIX::setsid();
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', "$self->{prefix}/stderr.log";
        open STDERR, '>&', \*STDOUT;
        $ENV{MOE_ISA} = 'c' if $self->{slow};
        exec $self->command or POSIX::_exit(127);
    }
    $self->{child} = $pid;
    $self->{master} = $pid if $self->{daemon} eq 'off';
    $self->{started} = 1;
    if ($self->{daemon} eq 'on') {
        waitpid($pid, 0);
        $self->{master} = wait_until(5, sub { $self->pid_file })
            or die "nginx did not daemonise\n" . $self->log_text;
    }
    wait_until(10, sub { $self->alive or die "nginx did not start\n" . $self->log_text;
                         $self->pid_file && $self->listening })
        or die "nginx does not listen\n" . $self->log_text;
    $self->wait_ready unless exists $args{ready} && !$args{ready};
    return $self;
}


sub pid_file {
    my ($self) = @_;

    open my $file, '<', "$self->{prefix}/nginx.pid" or return;
    my ($pid) = (<$file> // '') =~ /^(\d+)/;
    return $pid;
}


sub listening {
    my ($self) = @_;

    return eval { Moe::Client->new(port => $self->{port}); 1 };
}


sub health {
    my ($self) = @_;

    return eval { Moe::Client->new(port => $self->{port}, timeout => 5)->get('/health')->{status} }
        // 0;
}


sub wait_ready {
    my ($self, $timeout) = @_;

    return wait_until($timeout // 30, sub { $self->health == 200 })
        || die "the engine does not become ready\n" . $self->log_text;
}


# Is the master running?
sub alive {
    my ($self) = @_;

    return 0 unless $self->{master};
    return waitpid($self->{master}, WNOHANG) == 0 if $self->{daemon} eq 'off';
    return kill 0, $self->{master};
}


# All live processes of this server: {pid, ppid, title}.
sub processes {
    my ($self) = @_;
    my @found;

    return unless $self->{master};
    for my $dir (glob '/proc/[0-9]*') {
        open my $file, '<', "$dir/stat" or next;
        my ($state, $ppid, undef, $session) = (<$file> // '') =~ /.*\) (\S) (\d+) (\d+) (\d+)/s
            or next;
        next if $state eq 'Z' || $session != $self->{master};
        my $title = '';
        if (open my $cmdline, '<', "$dir/cmdline") {
            local $/;
            ($title = <$cmdline> // '') =~ tr/\0/ /;
        }
        push @found, { pid => $dir =~ s{.*/}{}r, ppid => $ppid, title => $title };
    }
    return @found;
}


# Pids of the workers that accept connections.
sub worker_pids {
    my ($self) = @_;

    my @pids = map { $_->{pid} } grep { $_->{title} =~ /^nginx: worker process\s*$/ }
        $self->processes;

    return @pids = sort { $a <=> $b } @pids;
}


# The pid of the engine itself (not of what supervises it).
sub engine_pid {
    my ($self) = @_;
    my @engines = map { $_->{pid} } grep { $_->{title} =~ m{^\S*moe-engine serve\b} }
        $self->processes;

    return $engines[0];
}


sub signal {
    my ($self, $signal, $pid) = @_;

    return kill $signal, $pid // $self->{master};
}


# Reloads and waits until none of the former workers accepts any more.
sub reload {
    my ($self) = @_;
    my %before = map { $_ => 1 } $self->worker_pids;

    $self->signal('HUP');
    return wait_until(10, sub {
        my @workers = $self->worker_pids;
        return @workers && !grep { $before{$_} } @workers;
    }) || die "reload: the workers did not change\n" . $self->log_text;
}


# Waits until the master, and everything it started, is gone.
sub gone {
    my ($self, $timeout) = @_;

    return wait_until($timeout, sub { waitpid($self->{child}, WNOHANG); !$self->processes });
}


# Lines of error.log matching this are no fault.
sub expect {
    my ($self, @patterns) = @_;

    push @{$self->{expected}}, @patterns;
    return $self;
}


sub log_text {
    my ($self, $name) = @_;
    my $text = '';

    for my $log ($name // qw(error.log stderr.log)) {
        open my $file, '<', "$self->{prefix}/$log" or next;
        local $/;
        $text .= <$file> // '';
    }
    return $text;
}


# What no log may say: a list of lines.
sub faults {
    my ($self) = @_;
    my @lines = grep { /$FORBIDDEN/ } split /\n/, $self->log_text;

    for my $pattern (@{$self->{expected}}) {
        @lines = grep { $_ !~ $pattern } @lines;
    }
    return @lines;
}


# Quits gracefully if it still runs; returns what went wrong in its life, a list of lines.
sub stop {
    my ($self) = @_;

    if ($self->{started}) {
        $self->signal('QUIT') if $self->alive;
        push @{$self->{left_over}}, map { "left over: $_->{pid} $_->{title}" } $self->processes
            unless $self->gone(10);
        $self->kill_all;
        $self->{started} = 0;
    }
    return (@{$self->{left_over} // []}, $self->faults);
}


sub kill_all {
    my ($self) = @_;

    for my $process ($self->processes) {
        kill 'KILL', $process->{pid};
    }
    waitpid($self->{child}, 0) if $self->{child};
    delete $self->{child};
    return;
}


sub remove {
    my ($self) = @_;

    remove_tree($self->{prefix}) if $self->{owner} == $$;
    return;
}

1;
