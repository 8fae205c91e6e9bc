package Moe::HTTP2;

# An HTTP/2 client at the level of frames: a test decides when a stream is reset and how much window
# it gets.  Headers are sent as literals; answers are decoded with the static table (nginx never
# refers to its dynamic one).

use strict;
use warnings;

use JSON::PP ();
use Protocol::HTTP2::Huffman qw(huffman_decode);
use Protocol::HTTP2::StaticTable qw(@stable);
use Time::HiRes qw(time);

use Moe::Client;

use constant {
    DATA => 0, HEADERS => 1, RST_STREAM => 3, SETTINGS => 4, PING => 6,
    WINDOW_UPDATE => 8,
    END_STREAM => 1, ACK => 1, END_HEADERS => 4,
    CANCEL => 8,
    DEFAULT_WINDOW => 65535,
};

my $json = JSON::PP->new->utf8->canonical->allow_nonref;


# port, tls: as for Moe::Client; window: what each stream may send before it is granted more.
sub new {
    my ($class, %args) = @_;
    my $self = bless { window => DEFAULT_WINDOW, next_id => 1, streams => {}, %args }, $class;

    $self->{connection} = Moe::Client->new(
        port => $args{port}, tls => $args{tls}, ($args{tls} ? (alpn => ['h2']) : ()));
    die "no h2 by ALPN\n" if $args{tls} && ($self->{connection}->alpn_selected // '') ne 'h2';
    $self->{timeout} = $self->{connection}{timeout};
    $self->{connection}->send_raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    $self->send_frame(SETTINGS, 0, 0, pack('nN', 4, $self->{window}));
    $self->send_frame(WINDOW_UPDATE, 0, 0, pack('N', 1 << 30));
    return $self;
}


sub close {
    my ($self) = @_;

    $self->{connection}->close;
    return;
}


sub send_frame {
    my ($self, $type, $flags, $id, $payload) = @_;

    $self->{connection}->send_raw(
        substr(pack('N', length $payload), 1) . pack('CCN', $type, $flags, $id) . $payload);
    return;
}


sub literal {
    my ($name, $value) = @_;

    return "\0" . pack('C', length $name) . $name . integer(length $value, 7) . $value;
}


# An integer of RFC 7541 section 5.1 with the upper bits of its first byte zero.
sub integer {
    my ($value, $bits) = @_;
    my $limit = (1 << $bits) - 1;
    my $bytes;

    return pack 'C', $value if $value < $limit;
    $bytes = pack 'C', $limit;
    for ($value -= $limit; $value >= 128; $value >>= 7) {
        $bytes .= pack 'C', 128 | $value & 127;
    }
    return $bytes . pack 'C', $value;
}


# Sends a request; returns its stream's id.  auto => 0: the stream is granted no window by itself.
sub send_request {
    my ($self, $method, $uri, $body, %args) = @_;
    my $id = $self->{next_id};
    my $block = join '', map { literal(@$_) } [':method', $method], [':path', $uri],
        [':scheme', $self->{tls} ? 'https' : 'http'], [':authority', 'localhost'],
        ['content-type', 'application/json'];

    $self->{next_id} += 2;
    $body = $json->encode($body) if ref $body;
    $self->{streams}{$id} = { auto => 1, body => '', events => '', %args };
    $self->send_frame(HEADERS, END_HEADERS | (defined $body ? 0 : END_STREAM), $id, $block);
    $self->send_frame(DATA, END_STREAM, $id, $body) if defined $body;
    return $id;
}


sub reset_stream {
    my ($self, $id) = @_;

    $self->send_frame(RST_STREAM, 0, $id, pack 'N', CANCEL);
    return;
}


sub grant {
    my ($self, $id, $bytes) = @_;

    $self->send_frame(WINDOW_UPDATE, 0, $id, pack 'N', $bytes);
    return;
}


# Takes one frame from the connection; false when it was closed.
sub pump {
    my ($self, $deadline) = @_;
    my $connection = $self->{connection};

    while (1) {
        my $have = length $connection->{buffer};
        if ($have >= 9) {
            my ($high, $low, $type, $flags, $id) = unpack 'CnCCN', $connection->{buffer};
            my $size = $high << 16 | $low;
            if ($have >= 9 + $size) {
                my $payload = substr $connection->{buffer}, 9, $size;
                substr $connection->{buffer}, 0, 9 + $size, '';
                $self->take_frame($type, $flags, $id & 0x7fffffff, $payload);
                return 1;
            }
        }
        $connection->fill($deadline) or return 0;
    }
}


sub take_frame {
    my ($self, $type, $flags, $id, $payload) = @_;
    my $stream = $self->{streams}{$id};

    if ($type == SETTINGS && !($flags & ACK)) {
        $self->send_frame(SETTINGS, ACK, 0, '');
    } elsif ($type == PING && !($flags & ACK)) {
        $self->send_frame(PING, ACK, 0, $payload);
    } elsif ($type == HEADERS && $stream) {
        die "headers over several frames\n" unless $flags & END_HEADERS;
        $stream->{headers} = decode_headers($payload);
    } elsif ($type == DATA && $stream) {
        $stream->{body} .= $payload;
        $stream->{events} .= $payload;
        $self->grant($id, length $payload) if $stream->{auto} && length $payload;
        $self->grant(0, length $payload) if length $payload;
    } elsif ($type == RST_STREAM && $stream) {
        $stream->{reset} = unpack 'N', $payload;
        $stream->{ended} = 1;
    }
    $stream->{ended} = 1 if $stream && ($type == DATA || $type == HEADERS) && $flags & END_STREAM;
    return;
}


# Pumps until $condition->($stream) holds for stream $id.  False at the end of the connection.
sub pump_until {
    my ($self, $id, $condition) = @_;
    my $deadline = time() + $self->{timeout};

    until ($condition->($self->{streams}{$id})) {
        $self->pump($deadline) or return 0;
    }
    return 1;
}


# The next event's data of a stream, or nothing at its end.
sub event {
    my ($self, $id) = @_;
    my $stream = $self->{streams}{$id};

    while (1) {
        $self->pump_until($id, sub { $_[0]{events} =~ /\n\n/ || $_[0]{ended} });
        $stream->{events} =~ s/^(.*?)\n\n//s or return;
        my $block = $1;
        return $1 if $block =~ /^data: (.*)/s;
    }
}


# The whole answer on a stream: {status, headers, body, json}.
sub answer {
    my ($self, $id) = @_;
    my $stream = $self->{streams}{$id};

    $self->pump_until($id, sub { $_[0]{ended} }) or die "connection closed before an answer\n";
    die "stream was reset\n" if defined $stream->{reset};
    return {
        status => $stream->{headers}{':status'} + 0,
        headers => $stream->{headers},
        body => $stream->{body},
        json => scalar eval { $json->decode($stream->{body}) },
    };
}


sub decode_headers {
    my ($block) = @_;
    my %headers;

    while (length $block) {
        my $byte = unpack 'C', $block;
        if ($byte & 0x80) {
            my ($name, $value) = @{$stable[take_integer(\$block, 7) - 1]};
            $headers{$name} = $value;
        } elsif (($byte & 0xe0) == 0x20) {
            take_integer(\$block, 5);
        } else {
            my $index = take_integer(\$block, $byte & 0x40 ? 6 : 4);
            my $name = $index ? $stable[$index - 1][0] : take_string(\$block);
            $headers{lc $name} = take_string(\$block);
        }
    }
    return \%headers;
}


sub take_integer {
    my ($block, $bits) = @_;
    my $limit = (1 << $bits) - 1;
    my $value = unpack('C', substr $$block, 0, 1, '') & $limit;

    return $value if $value < $limit;
    for (my $shift = 0; ; $shift += 7) {
        my $byte = unpack 'C', substr $$block, 0, 1, '';
        $value += ($byte & 127) << $shift;
        return $value unless $byte & 128;
    }
}


sub take_string {
    my ($block) = @_;
    my $packed = unpack('C', $$block) & 0x80;
    my $size = take_integer($block, 7);
    my $text = substr $$block, 0, $size, '';

    return $packed ? huffman_decode($text) : $text;
}

1;
