# Two API keys: what one floods the server with does not keep the other from being served.

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use Moe::Test;

my $server = server(slow => 1, start => 0, model_block => 'batch_sequences 2; queue 6;',
    server => 'location /keys/ { moe_pass demo; moe_api_keys %PREFIX%/keys; }');
$server->write_file('keys', join '', map { "$_:" . sha256_hex("sk-$_") . "\n" } 'one', 'other');
$server->start;

my $uri = '/keys/v1/completions';


sub headers {
    my ($key) = @_;

    return (headers => { Authorization => "Bearer sk-$key" });
}


sub begin {
    my ($key, $tokens) = @_;

    return client($server)->send_request('POST', $uri, { model => 'demo', %{long_body($tokens)} },
                                         headers($key));
}


sub ask {
    my ($key) = @_;

    return post($server, $uri, { model => 'demo', %{long_body(3)} }, headers($key));
}

# Eight places: one key takes them all, and no more.
my @flood = map { begin('one', 2000) } 1 .. 8;
ok(wait_until(10, sub { running($server) == 2 && waiting($server) == 6 }), 'one key fills it all');
is(ask('one')->{status}, 429, 'it gets no more of them');

# The other has half of them, all the same.
my @answers = map { begin('other', 2000) } 1 .. 4;
ok(wait_until(10, sub { running($server) + waiting($server) == 12 }), 'the other key is let in');
is(ask('other')->{status}, 429, 'up to half of them');
is(ask('one')->{status}, 429, 'the first still has enough');

# One of the two that run has stepped back for it, for good.
ok(wait_until(10, sub { metric($server, 'moe_num_preemptions_total') == 1 }), 'one steps back');
$_->close for splice @answers, 0, 4;
ok(wait_until(10, sub { running($server) + waiting($server) == 8 }), 'the other key is gone');
for (1 .. 3) {
    my $answer = ask('other');

    is($answer->{status}, 200, 'the other key is served at once');
    is($answer->{json}{usage}{completion_tokens}, 3, 'whole');
}
is(running($server) + waiting($server), 8, 'while nothing of the flood has ended');
cmp_ok(metric($server, 'moe_num_preemptions_total'), '<=', 4, 'and one has stepped back for each');
$_->close for @flood;
ok(idle($server), 'idle');

finish();
