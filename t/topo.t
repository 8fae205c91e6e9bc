# moe-engine topo: machines that are made up by hwloc's own means, ranks on them, what is refused.

use strict;
use warnings;
use File::Temp;
use Test::More;

my $engine = ($ENV{BUILD} // 'build') . '/moe-engine';
my $demo = 'conf/models/nginx-directives-moe';

# Standard output, standard error, exit code.
sub topo {
    my ($machine, @arguments) = @_;
    local @ENV{keys %$machine} = values %$machine;
    my $errors = File::Temp->new;
    my $pid = open(my $out, '-|') // die "fork: $!";

    if (!$pid) {
        open STDERR, '>', $errors->filename or die;
        exec $engine, 'topo', @arguments or die "$engine: $!";
    }
    my $output = do { local $/; <$out> } // '';
    close $out;
    my $code = $? >> 8;
    open my $in, '<', $errors->filename or die;
    return ($output, join('', <$in>), $code);
}

sub cpus {
    my ($name, $index, $set, $inside) = @_;
    my $sets = qq(cpuset="$set" complete_cpuset="$set" nodeset="$index->{set}" )
        . qq(complete_nodeset="$index->{set}");
    return qq(<object type="$name" os_index="$index->{os}" $sets gp_index="$index->{id}")
        . ($inside // '/>');
}

# Two packages with a node of two CPUs each, and the distances between them.
sub two_nodes {
    my $file = File::Temp->new(SUFFIX => '.xml');
    my $id = 1;

    print $file qq(<?xml version="1.0" encoding="UTF-8"?>\n)
        . qq(<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n)
        . qq(<object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf" )
        . qq(allowed_cpuset="0xf" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" )
        . qq(gp_index="1">\n);
    for my $node (0, 1) {
        my $set = sprintf '0x%x', 3 << 2 * $node;
        my $in = sub { return {os => $_[0], set => sprintf('0x%x', 1 << $node), id => ++$id} };

        print $file cpus('Package', $in->($node), $set, ">\n"),
            cpus('NUMANode', $in->($node), $set, ' local_memory="2147483648"/>'), "\n";
        for my $cpu (2 * $node, 2 * $node + 1) {
            my $one = sprintf '0x%x', 1 << $cpu;
            print $file cpus('Core', $in->($cpu), $one, '>'), cpus('PU', $in->($cpu), $one),
                "</object>\n";
        }
        print $file "</object>\n";
    }
    print $file qq(</object>\n<distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" )
        . qq(indexing="os">\n<indexes length="4">0 1 </indexes>\n)
        . qq(<u64values length="12">10 21 21 10 </u64values>\n</distances2>\n</topology>\n);
    $file->flush;
    return $file;
}

my ($text, $errors, $code) = topo({});
is $code, 0, 'this machine';
is $errors, '', 'nothing to complain about';
like $text, qr/^\d+ NUMA nodes?; \d+ CPUs may be used/, 'its nodes';
like $text, qr/^rank 0: \d+ threads?/m, 'its only rank';

my $four = {HWLOC_SYNTHETIC => 'pack:2 numa:2 core:3 pu:2', HWLOC_THISSYSTEM => 0};
($text, $errors, $code) = topo($four, qw(--ranks 8 --tensor-parallel 2 --threads 12));
is $code, 0, 'eight ranks on four nodes';
like $text, qr/^4 NUMA nodes;.*^node 2: package 1, 3 cores, CPUs 12-17, 1\.0 GiB$/ms, 'the nodes';
like $text, qr/does not tell the distances/, 'no distances';
is_deeply [$text =~ /^rank .*/mg],
    [map { sprintf 'rank %d: group %d, part %d of 2; %d thread%s on node %d', $_, $_ / 2,
               $_ % 2 + 1, $_ < 4 ? 2 : 1, $_ < 4 ? 's' : '', $_ / 2 } 0 .. 7],
    'ranks of a group are neighbours, threads are shared out';

($text) = topo($four, qw(--ranks 2 --threads 2));
like $text, qr/^rank 0: 1 thread on nodes 0 1\nrank 1: 1 thread on nodes 2 3$/m,
    'fewer ranks than nodes have several';

my $file = two_nodes();
my $two = {HWLOC_XMLFILE => $file->filename, HWLOC_THISSYSTEM => 0};
($text, $errors, $code) = topo($two, qw(--ranks 2 --threads 4));
is $code, 0, 'a machine whose firmware knows its distances' or diag $errors;
like $text, qr/^distance     0     1\n       0    10    21\n       1    21    10$/m, 'they are shown';

($text) = topo({}, $demo, qw(--ranks 3 --threads 3));
like $text, qr/^16 experts in 6 slots of each rank, in each of 3 layers$/m, 'a model';
my %held;
for my $list ($text =~ /^rank \d: experts (.*)/mg) {
    $held{$_}++ for map { /(\d+)-(\d+)/ ? $1 .. $2 : $_ } split /, /, $list;
}
is_deeply [sort { $a <=> $b } keys %held], [0 .. 15], 'every expert has a slot';
is eval { my $n = 0; $n += $_ for values %held; $n }, 18, 'spare slots hold copies';

($text) = topo({}, $demo, qw(--ranks 4 --threads 4 --redundant-experts 4));
like $text, qr/^16 experts in 5 slots of each rank, in each of 3 layers$/m, 'slots for copies';

(undef, $errors, $code) = topo({}, $demo, qw(--redundant-experts 0));
is $code, 0, 'no copies' or diag $errors;

for my $case (
    [[$demo, qw(--ranks 4 --threads 4 --redundant-experts 3)],
        qr/^moe-engine: redundant_experts 3: 16 experts and these cannot be divided evenly among 4 /],
    [['--ranks'], qr/unknown option or wrong value: "--ranks"/],
    [[qw(--ranks 0)], qr/unknown option or wrong value: "--ranks" "0"/],
    [[qw(--ranks 3 --threads 2)], qr/^moe-engine: 3 ranks need a thread each: threads is 2$/],
    [[qw(--ranks 4 --tensor-parallel 3 --threads 4)],
        qr/^moe-engine: tensor_parallel 3 does not divide 4 ranks$/],
    [[$demo, qw(--redundant-experts 4)], qr/^moe-engine: redundant_experts 4: there is one rank only$/],
    [[$demo, qw(--ranks 8 --tensor-parallel 8 --threads 8)],
        qr/^moe-engine: tensor_parallel 8: layer 0 has 4 heads to be divided$/],
    [['nowhere'], qr/^moe-engine: nowhere: No such file or directory$/],
    [[$demo, 'another'], qr/unknown option or wrong value: "another"/],
    )
{
    my ($output, $message, $exit) = topo({}, @{$case->[0]});
    chomp $message;
    is $output, '', 'nothing on standard output';
    like $message, $case->[1], "refused: @{$case->[0]}";
    is $exit, 1, 'with exit code 1';
}

done_testing;
