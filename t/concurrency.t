# Two hundred streams at once: all come to their end, none is mixed up with another.

use lib 't/lib';
use Moe::Test;

my $server = server();
my @words = qw(gzip proxy_pass listen root index);
my @expected = map {
    completion($server, long_body(16, prompt => "Syntax: $_"))->{json}{choices}[0]{text}
} @words;
my @clients = map {
    send_body($server, long_body(16, prompt => "Syntax: $words[$_ % 5]", stream => \1))
} 0 .. 199;
my (@texts, @cut);

for my $i (0 .. $#clients) {
    my $head = $clients[$i]->read_head;
    my $result = collect($clients[$i]);

    push @texts, $result->{text};
    push @cut, $i if $head->{status} != 200 || !$result->{done} || !$result->{complete};
    $clients[$i]->close;
}
is_deeply(\@cut, [], 'all streams are whole');
is_deeply(\@texts, [map { $expected[$_ % 5] } 0 .. 199], 'and have their own text');
ok(idle($server), 'idle');

finish();
