# perl -It/lib t/nightly/limit.pl [SECONDS]: 8 clients that never stop asking, at two workers, under
# a limit of 10,000 tokens a minute, for SECONDS (180): what they get is the limit, within 5 %.

use lib 't/lib';
use List::Util qw(max);
use Moe::Load;
use Moe::Test;

use constant { CLIENTS => 8, RATE => 10_000, TOLERANCE => 0.05 };

my $seconds = $ARGV[0] // 180;
my $server = server(http => 'moe_limit_tokens_zone $binary_remote_addr zone=tokens:1m rate='
    . RATE . 't/m;', location => 'moe_limit_tokens zone=tokens;');

alarm $seconds + 120;

# Streams and answers in one piece, of prompts and answers of all lengths.
sub one {
    my $body = long_body(1 + int rand 150, prompt => 'Syntax: gzip ' x (1 + rand 20));
    my ($client, %result);

    if (rand() < 0.5) {
        $client = stream($server, '/v1/completions',
            { %$body, stream_options => { include_usage => \1 } });
        %result = (status => $client->{head}{status});
        $result{total} = collect($client)->{usage}{total_tokens} if $result{status} == 200;
    } else {
        $client = client($server);
        my $answer = $client->request('POST', '/v1/completions', { model => 'demo', %$body });
        %result = (status => $answer->{status}, total => ($answer->{json}{usage} // {})
            ->{total_tokens});
    }
    $result{worker} = $client->{head}{headers}{'x-worker'};
    $client->close;
    sleep(0.05 + rand(0.1)) if $result{status} == 429;
    return \%result;
}

my $began = time();
my $load = start_clients($server, CLIENTS, \&one);
sleep($seconds);
my $elapsed = time() - $began;
my @results = stop_clients($load);
my (%count, %workers);
my $used = 0;
for my $result (@results) {
    $count{$result->{status} // $result->{died}}++;
    $used += $result->{total} // 0;
    $workers{$result->{worker}}++ if $result->{worker};
}
my $expected = RATE * max(1, $elapsed / 60);    # a minute's tokens may be used at once
my $error = $used / $expected - 1;

is_deeply([sort keys %count], [200, 429], 'served or refused');
is(scalar keys %workers, 2, 'by two workers');
cmp_ok(abs $error, '<=', TOLERANCE, sprintf('%d tokens in %.1f s, the limit is %d: %+.2f %%; '
    . '%d answers, %d refusals', $used, $elapsed, $expected, 100 * $error, $count{200},
    $count{429}));
finish();
