#!/usr/bin/perl

# A picture (SVG) of the rows of each rank before and after placement: 4 ranks, 32 experts of which
# one gets 30 % of the rows, 4 redundant slots.
#
#     make bench    or    perl -It/lib t/bench/expert_load.pl [FILE]
#
# What is drawn is what t/unit/balance_test.c measures.  FILE: build/expert_load.svg.

use strict;
use warnings;

my $build = $ENV{BUILD} // 'build';
my $file = shift @ARGV // "$build/expert_load.svg";
my @names = ('without placement', 'with placement');

use constant {
    WIDTH => 640, HEIGHT => 300, LEFT => 60, TOP => 50, PLOT => 190, BAR => 26, GAP => 8
};

# The rows of each rank, of all layers together.
sub measure {
    my %rows;

    system('make', '-s', "BUILD=$build", "$build/unit/balance_test") == 0 or die "make failed\n";
    open my $test, '-|', "$build/unit/balance_test 2>&1" or die "balance_test: $!";
    while (my $line = <$test>) {
        print $line if $line =~ /most loaded rank/;
        my ($name, $list) = $line =~ /^layer \d+, (.*): ([\d ]+) rows/ or next;
        my @ranks = split / /, $list;
        $rows{$name}[$_] += $ranks[$_] for 0 .. $#ranks;
    }
    close $test or die "balance_test failed\n";
    return map { $rows{$_} // die "no figures $_\n" } @names;
}

sub text {
    my ($x, $y, $anchor, $text) = @_;

    return qq(<text x="$x" y="$y" text-anchor="$anchor">$text</text>\n);
}

# Bars of one measurement from $x on, in shares of all rows.
sub bars {
    my ($x, $name, $rows, $scale) = @_;
    my ($sum, $most) = (0, 0);
    my $svg = '';

    for my $n (@$rows) {
        $sum += $n;
        $most = $n if $n > $most;
    }
    for my $rank (0 .. $#$rows) {
        my $share = $rows->[$rank] / $sum;
        my $height = sprintf '%.1f', $share * $scale;
        my $left = $x + $rank * (2 * BAR + GAP);
        my $middle = $left + BAR;

        $svg .= sprintf qq(<rect x="%d" y="%.1f" width="%d" height="%s" fill="%s"/>\n), $left,
            TOP + PLOT - $height, 2 * BAR, $height, $rows->[$rank] == $most ? '#c0504d' : '#4f81bd';
        $svg .= text($middle, sprintf('%.1f', TOP + PLOT - $height - 5), 'middle',
                     sprintf '%.1f %%', 100 * $share);
        $svg .= text($middle, TOP + PLOT + 16, 'middle', "rank $rank");
    }
    return $svg . text($x + 2 * (2 * BAR + GAP), TOP + PLOT + 40, 'middle',
                       sprintf '%s: most / mean %.2f', $name, $most * @$rows / $sum);
}

sub picture {
    my (@measurements) = @_;
    my $scale = PLOT * 2;                       # the axis ends at one half
    my $mean = sprintf '%.1f', TOP + PLOT - $scale / @{$measurements[0]};
    my $svg = sprintf qq(<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" )
        . qq(font-family="sans-serif" font-size="13">\n<rect width="100%%" height="100%%" )
        . qq(fill="#fff"/>\n), WIDTH, HEIGHT;

    $svg .= text(WIDTH / 2, 26, 'middle', 'Rows of each rank: one of 32 experts gets 30 % of them');
    $svg .= bars(LEFT, $names[0], $measurements[0], $scale);
    $svg .= bars(LEFT + WIDTH / 2 - 25, $names[1], $measurements[1], $scale);
    $svg .= sprintf qq(<line x1="%d" y1="%s" x2="%d" y2="%s" stroke="#000" )
        . qq(stroke-dasharray="4"/>\n), LEFT - 10, $mean, WIDTH - 40, $mean;
    $svg .= text(WIDTH - 36, $mean + 4, 'start', 'mean');
    return "$svg</svg>\n";
}

my $svg = picture(measure());
open my $out, '>', $file or die "$file: $!\n";
print $out $svg;
close $out or die "$file: $!\n";
print "$file\n";
