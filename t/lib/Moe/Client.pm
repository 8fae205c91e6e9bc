package Moe::Client;

# A raw HTTP/1 client over TCP or TLS: sends exactly what it is told, reads the answer piece by
# piece.  Every read has a deadline and dies with "timeout" after it.

use strict;
use warnings;

use Errno qw(EINTR EAGAIN ECONNRESET EPIPE);
use IO::Handle;
use IO::Select;
use JSON::PP ();
use Socket qw(:DEFAULT IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

my $json = JSON::PP->new->utf8->canonical->allow_nonref;


# port; tls => 1; alpn => [...]; receive_buffer => bytes (a small one makes a slow reader);
# timeout => seconds for every wait.
sub new {
    my ($class, %args) = @_;
    my $self = bless { timeout => 20, buffer => '', %args }, $class;
    my $socket;

    $self->{timeout} *= $ENV{TEST_SLOW} || 1;
    socket($socket, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
    if ($self->{receive_buffer}) {
        setsockopt($socket, SOL_SOCKET, SO_RCVBUF, $self->{receive_buffer}) or die "SO_RCVBUF: $!";
    }
    setsockopt($socket, IPPROTO_TCP, TCP_NODELAY, 1);
    connect($socket, pack_sockaddr_in($self->{port}, INADDR_LOOPBACK))
        or die "connect to port $self->{port}: $!\n";
    $self->{socket} = $socket;
    $self->start_tls if $self->{tls};
    $socket->blocking(0);
    return $self;
}


my %tls_contexts;    # by ALPN: to make one takes longer than a handshake

sub start_tls {
    my ($self) = @_;
    my @alpn = @{$self->{alpn} // []};

    require IO::Socket::SSL;
    my $context = $tls_contexts{"@alpn"} //= IO::Socket::SSL::SSL_Context->new(
        SSL_verify_mode => 0, (@alpn ? (SSL_alpn_protocols => \@alpn) : ()));
    IO::Socket::SSL->start_SSL($self->{socket}, SSL_reuse_ctx => $context, SSL_verify_mode => 0,
                               Timeout => $self->{timeout})
        or die "TLS: " . IO::Socket::SSL::errstr();
    return;
}


sub alpn_selected {
    my ($self) = @_;

    return $self->{socket}->alpn_selected;
}


sub close {
    my ($self) = @_;

    CORE::close(delete $self->{socket}) if $self->{socket};
    return;
}


# Closes so that the peer sees a reset instead of an end.
sub abort {
    my ($self) = @_;

    setsockopt($self->{socket}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    $self->close;
    return;
}


# Writes all of $bytes; returns how much the peer took.
sub send_raw {
    my ($self, $bytes) = @_;
    my $socket = $self->{socket};
    my $deadline = time() + $self->{timeout};
    my $done = 0;

    local $SIG{PIPE} = 'IGNORE';
    while ($done < length $bytes) {
        my $n = syswrite($socket, $bytes, length($bytes) - $done, $done);
        if (defined $n) {
            $done += $n;
        } elsif ($!{EAGAIN} || $!{EINTR}) {
            die "timeout: the server does not read\n" if time() > $deadline;
            IO::Select->new($socket)->can_write(0.1);
        } else {
            return $done;
        }
    }
    return $done;
}


# Reads what is there into the buffer.  False at the end of the connection.
sub fill {
    my ($self, $deadline) = @_;
    my $socket = $self->{socket};
    my $select = IO::Select->new($socket);

    $deadline //= time() + $self->{timeout};
    while (1) {
        my $n = sysread($socket, $self->{buffer}, 65536, length $self->{buffer});
        return $n if defined $n;
        if ($!{ECONNRESET} || $!{EPIPE}) {
            $self->{was_reset} = 1;
            return 0;
        }
        die "read: $!\n" unless $!{EAGAIN} || $!{EINTR};
        my $left = $deadline - time();
        die "timeout: the server is silent\n" if $left <= 0;
        $select->can_read($left);
    }
}


# Has the peer closed, within $timeout seconds?  What it still sent is kept.
sub closed {
    my ($self, $timeout) = @_;
    my $deadline = time() + $timeout;

    return eval { 1 while $self->fill($deadline); 1 } || 0;
}


sub send_request {
    my ($self, $method, $uri, $body, %args) = @_;
    my $version = $args{version} // '1.1';
    my %headers = (Host => 'localhost', %{$args{headers} // {}});
    my $text = "$method $uri HTTP/$version\r\n";

    $body = $json->encode($body) if ref $body;
    if (defined $body) {
        $headers{'Content-Type'} //= 'application/json';
        $headers{'Content-Length'} //= length $body
            unless defined $headers{'Transfer-Encoding'};
    }
    for my $name (sort keys %headers) {
        $text .= "$name: $headers{$name}\r\n" if defined $headers{$name};
    }
    $self->send_raw("$text\r\n" . ($body // ''));
    return $self;
}


# Reads status line and headers of the next answer: {status, version, headers}.
sub read_head {
    my ($self) = @_;
    my $head;

    while (1) {
        while ($self->{buffer} !~ /\r\n\r\n/) {
            $self->fill or die "connection closed before an answer\n";
        }
        $self->{buffer} =~ s/^(.*?)\r\n\r\n//s;
        my ($status_line, @lines) = split /\r\n/, $1;
        my ($version, $status) = $status_line =~ m{^HTTP/(1\.[01]) (\d{3})}
            or die "no status line: $status_line\n";
        $head = { version => $version, status => $status + 0, headers => {} };
        for my $line (@lines) {
            my ($name, $value) = $line =~ /^([^:]+):\s*(.*)$/ or die "bad header: $line\n";
            $head->{headers}{lc $name} = $value;
        }
        last if $status >= 200;
    }
    @$self{qw(head left events complete pings)} = ($head, undef, '', 0, 0);
    my $length = $head->{headers}{'content-length'};
    if ($self->{no_body} || $head->{status} == 204 || $head->{status} == 304) {
        $self->{left} = 0;
        $self->{framing} = 'length';
    } elsif (($head->{headers}{'transfer-encoding'} // '') =~ /chunked/) {
        $self->{framing} = 'chunked';
    } elsif (defined $length) {
        $self->{framing} = 'length';
        $self->{left} = $length;
    } else {
        $self->{framing} = 'close';
    }
    return $head;
}


# The next piece of the body as the server framed it, or nothing at its end.  {complete} tells then
# whether the body ended as announced.
sub read_piece {
    my ($self) = @_;

    return if $self->{complete};
    return $self->read_chunk if $self->{framing} eq 'chunked';
    if ($self->{framing} eq 'length' && $self->{left} == 0) {
        $self->{complete} = 1;
        return;
    }
    if ($self->{buffer} eq '' && !$self->fill) {
        $self->{complete} = $self->{framing} eq 'close' && !$self->{was_reset};
        return;
    }
    my $size = length $self->{buffer};
    $size = $self->{left} if defined $self->{left} && $self->{left} < $size;
    $self->{left} -= $size if defined $self->{left};
    return substr $self->{buffer}, 0, $size, '';
}


sub read_chunk {
    my ($self) = @_;

    while ($self->{buffer} !~ /^[0-9a-fA-F]+\r\n/) {
        die "bad chunk\n" if length $self->{buffer} > 20;
        $self->fill or return;
    }
    my ($digits) = $self->{buffer} =~ /^([0-9a-fA-F]+)\r\n/;
    my ($size, $skip) = (hex $digits, length($digits) + 2);
    while (length $self->{buffer} < $skip + $size + 2) {
        $self->fill or return;
    }
    my $data = substr $self->{buffer}, $skip, $size;
    substr($self->{buffer}, $skip + $size, 2) eq "\r\n" or die "bad end of chunk\n";
    substr $self->{buffer}, 0, $skip + $size + 2, '';
    if ($size == 0) {
        $self->{complete} = 1;
        return;
    }
    return $data;
}


sub read_body {
    my ($self) = @_;
    my $body = '';

    while (defined(my $piece = $self->read_piece)) {
        $body .= $piece;
    }
    return $body;
}


# Request and whole answer: {status, headers, version, body, json, complete}.
sub request {
    my ($self, @arguments) = @_;

    $self->send_request(@arguments);
    return $self->read_answer;
}


sub read_answer {
    my ($self) = @_;
    my $answer = $self->read_head;

    $answer->{body} = $self->read_body;
    $answer->{complete} = $self->{complete};
    $answer->{json} = eval { $json->decode($answer->{body}) };
    return $answer;
}


sub get {
    my ($self, $uri, %args) = @_;

    return $self->request('GET', $uri, undef, %args);
}


# The data of the next server-sent event, or nothing at the end of the body.  Comments are counted
# as pings; any other field would be a fault of the server.
sub event {
    my ($self) = @_;

    while (1) {
        while ($self->{events} =~ s/^(.*?)\n\n//s) {
            my @lines = split /\n/, $1;
            $self->{pings} += grep { /^:/ } @lines;
            my @data = map { /^data: (.*)/s ? $1 : /^:/ ? () : die "not an event: $_\n" } @lines;
            return join "\n", @data if @data;
        }
        my $piece = $self->read_piece;
        if (!defined $piece) {
            die "unfinished event: $self->{events}\n" if $self->{events} ne '' && $self->{complete};
            return;
        }
        $self->{events} .= $piece;
    }
}

1;
