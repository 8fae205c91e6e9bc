# Variables of the access log: true numbers for answers, streams, errors and aborted requests.

use lib 't/lib';
use Moe::Test;

my @names = qw(model prompt_tokens completion_tokens cached_tokens ttft tpot queue_time
               finish_reason request_id);
my $format = join ' ', map { "$_=\$moe_$_" } @names;
my $server = server(
    http => "log_format moe 'status=\$status uri=\$uri $format';",
    server => 'access_log %PREFIX%/moe.log moe;',
);

# The log's line for the next request to $uri, as a hash.
my $seen = 0;
sub logged {
    my $line = wait_until(3, sub {
        my @lines = grep { m{uri=/v1/} } split /\n/, $server->log_text('moe.log');
        return $lines[$seen];
    });
    $seen++;
    return { map { /^(\w+)=(.*)$/ } split / /, $line // '' };
}

my $answer = completion($server, long_body(20));
my $log = logged();
is($log->{status}, 200, 'answer: status');
is($log->{model}, 'demo', 'answer: model');
is($log->{prompt_tokens}, $answer->{json}{usage}{prompt_tokens}, 'answer: prompt tokens');
is($log->{completion_tokens}, 20, 'answer: completion tokens');
is($log->{cached_tokens}, 0, 'answer: cached tokens');
is($log->{finish_reason}, 'length', 'answer: finish reason');
like($log->{$_}, qr/^\d+\.\d+$/, "answer: $_") for qw(ttft tpot queue_time);
cmp_ok($log->{ttft}, '<', 20, 'answer: ttft in seconds');
cmp_ok(length $log->{request_id}, '>', 7, 'answer: request id');
like($answer->{json}{id}, qr/\Q$log->{request_id}\E/, 'answer: the id holds it');

my $result = collect_all($server, '/v1/chat/completions',
    { messages => [{ role => 'user', content => 'What is the default of keepalive_timeout?' }],
      temperature => 0, stream_options => { include_usage => \1 } });
$log = logged();
is($log->{finish_reason}, 'stop', 'stream: finish reason');
is($log->{completion_tokens}, $result->{usage}{completion_tokens}, 'stream: completion tokens');
is($log->{prompt_tokens}, $result->{usage}{prompt_tokens}, 'stream: prompt tokens');

completion($server, { prompt => 'a', max_tokens => -1 });
$log = logged();
is($log->{status}, 400, 'error: status');
is($log->{completion_tokens}, '-', 'error: no tokens');
is($log->{finish_reason}, 'error', 'error: finish reason');

hold($server, long_body(1500))->close;
$log = logged();
is($log->{status}, 200, 'aborted: status');
cmp_ok($log->{completion_tokens}, '>', 0, 'aborted: tokens so far');
cmp_ok($log->{completion_tokens}, '<', 1500, 'aborted: not all');
is($log->{finish_reason}, 'cancelled', 'aborted: finish reason');

# Outside a moe_pass location variables are empty.
get($server, '/status');
ok(wait_until(3, sub { $server->log_text('moe.log') =~ m{uri=/status model=- } }),
   'elsewhere: no model');

finish();
