# moe-engine plan: a table, JSON, and clear errors; from a directory or a config.json alone.

use strict;
use warnings;
use File::Temp qw(tempdir);
use JSON::PP;
use Test::More;

my $engine = ($ENV{BUILD} // 'build') . '/moe-engine';
my $v3 = 't/golden/deepseek_v3.json';
my $demo = 'conf/models/nginx-directives-moe';

# Standard output, standard error in one line, exit code.
sub run_plan {
    my $errors = File::Temp->new;
    my $pid = open(my $out, '-|') // die "fork: $!";

    if (!$pid) {
        open STDERR, '>', $errors->filename or die;
        exec $engine, 'plan', @_ or die "$engine: $!";
    }
    my $output = do { local $/; <$out> } // '';
    close $out;
    my $code = $? >> 8;
    open my $in, '<', $errors->filename or die;
    return ($output, join('', <$in>), $code);
}

my ($table, $errors, $code) = run_plan($v3);
is $code, 0, 'a config.json without weights';
is $errors, '', 'nothing to complain about';
my @rows = grep /^ *\d+ +\d+ \|/, split /\n/, $table;
is_deeply [map { (split)[0] } @rows], [1, 2, 4, 8, 16, 32, 64, 72, 96, 128, 144, 192, 256, 320],
    'the curve from one device to 320';
like $rows[0], qr/ - +- +-$/, 'one device is too small';
like $rows[-1], qr/ \d+ +\d+ +\d+$/, '320 are enough';
like $table, qr/^deepseek_v3, decode: 128 sequences per device, context 4096; weights fp8,/,
    'the checkpoint says fp8';

($table, $errors, $code) = run_plan($demo, qw(--devices 12 --node 4 --weights q4_k));
is $code, 0, 'a model directory';
is_deeply [map { (split)[0] } grep /^ *\d+ +\d+ \|/, split /\n/, $table], [1, 2, 4, 8, 12],
    'whole nodes up to the given number';
unlike $table, qr/do not fit/, 'a small model fits';

my ($json) = run_plan($v3, '--sizes', '32,144', qw(--json --payload int8 --redundant 32 --batch 64));
my $plan = decode_json($json);
is_deeply [map { $_->{devices} } @{$plan->{plans}}], [32, 144], 'the sizes asked for';
is_deeply [map { $_->{slots} } @{$plan->{plans}}], [9, 2], 'slots with the redundant ones';
is $plan->{payload}, 'int8', 'int8 there';
is $plan->{return_payload}, 'bf16', 'bf16 back';
my ($f32) = run_plan($v3, qw(--sizes 32 --json --payload f32 --return-payload int8 --return rank));
my ($int8) = run_plan($v3, qw(--sizes 32 --json --payload int8 --return-payload int8 --return rank));
cmp_ok $plan->{plans}[0]{step_ms}, '>', 0, 'times are numbers';
my ($more, $less) = map { decode_json($_)->{plans}[0]{step_bytes} } $f32, $int8;
cmp_ok abs($more / $less - (4 + 1.03125) / 2.0625), '<', 1e-6, 'rows of int8 are 26 % of f32';

my $directory = tempdir(CLEANUP => 1);
sub config {
    my ($name, $text) = @_;
    open my $out, '>', "$directory/$name" or die;
    print $out $text;
    close $out;
    return "$directory/$name";
}

for (
    [[], qr/a model directory or a config\.json is needed; usage: moe-engine plan /],
    [[$v3, '--sizes', '12'], qr/^moe-engine: 12 devices are no whole number of nodes with 8 devices$/],
    [[$v3, '--devices', '20'], qr/^moe-engine: 20 devices are no whole number of nodes with 8/],
    [[$v3, '--devices', '0'], qr/unknown option or wrong value: "--devices" "0";/],
    [[$v3, '--devices', '1.5'], qr/unknown option or wrong value: "--devices" "1\.5";/],
    [[$v3, '--bandwidth', 'nan'], qr/unknown option or wrong value: "--bandwidth" "nan";/],
    [[$v3, '--imbalance', '0.9'], qr/unknown option or wrong value: "--imbalance" "0\.9";/],
    [[$v3, '--weights', 'q3'], qr/unknown option or wrong value: "--weights" "q3";/],
    [[$v3, '--sizes', '1,,2'], qr/unknown option or wrong value: "--sizes" "1,,2";/],
    [[$v3, '--json', '--batch'], qr/unknown option or wrong value: "--batch";/],
    [[$v3, $v3], qr/unknown option or wrong value: "t\/golden/],
    [[config('a.gguf', 'GGUF')], qr/\/a\.gguf: a config\.json is needed, not GGUF$/],
    [["$directory/none"], qr/^moe-engine: \Q$directory\E\/none: No such file/],
    [["$directory/none.json"], qr/^moe-engine: \Q$directory\E\/none\.json: No such file/],
    [[config('a.json', '{"model_type":"gpt9"}')], qr/model_type: "gpt9" is not a supported family/],
    [[config('b.json', '{"model_type":"deepseek_v3"}')], qr/config\.json: hidden_size: missing/],
    [[config('c.json', '[')], qr/c\.json: /],
) {
    my ($arguments, $message) = @$_;
    my ($output, $error, $rc) = run_plan(@$arguments);

    is $rc, 1, "refused: @$arguments[1 .. $#$arguments]";
    is $output, '', 'nothing on standard output';
    like $error, $message, 'the reason';
}

done_testing;
