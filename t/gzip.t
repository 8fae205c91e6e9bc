# gzip does not hold events back.

use lib 't/lib';
use Moe::Test;
use Compress::Zlib;

my $server = server(http => <<'END');
gzip on;
gzip_types text/event-stream application/json;
gzip_min_length 0;
END
my $body = long_body(400);
my $text = completion($server, $body)->{json}{choices}[0]{text};
my @gzip = (headers => { 'Accept-Encoding' => 'gzip' });

# Inflate piece by piece, as it arrives.
my $client = stream($server, '/v1/completions', $body, @gzip);
is($client->{head}{headers}{'content-encoding'}, 'gzip', 'compressed');
my ($inflate) = inflateInit(-WindowBits => 31);
my ($whole, $pieces, $events_early) = ('', 0, undef);
while (defined(my $piece = $client->read_piece)) {
    my ($plain) = $inflate->inflate($piece);
    $whole .= $plain;
    $pieces++;
    $events_early //= () = $whole =~ /\n\n/g if $pieces == 3;
}
cmp_ok($pieces, '>', 20, 'many pieces');
cmp_ok($events_early, '>', 0, 'the first ones hold whole events');
cmp_ok($events_early, '<', 200, 'and only the first ones');
my @data = $whole =~ /^data: (.*)$/mg;
is(pop @data, '[DONE]', 'ends with [DONE]');
is(join('', map { json_decode($_)->{choices}[0]{text} } @data), $text, 'the same text');
$client->close;

# An answer in one piece is compressed too.
my $answer = completion($server, $body, @gzip);
is($answer->{headers}{'content-encoding'}, 'gzip', 'JSON compressed');
is(json_decode(Compress::Zlib::memGunzip($answer->{body}))->{choices}[0]{text}, $text,
   'JSON: the same text');

finish();
