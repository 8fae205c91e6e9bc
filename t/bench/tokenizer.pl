#!/usr/bin/perl

# Speed of the tokenizer on one thread, and how long a large tokenizer.json takes to load, both in
# time of the processor.
#
#     make bench    or    perl -It/lib t/bench/tokenizer.pl [ROUNDS]
#
# The vocabulary has 150,000 tokens: a byte-level one as Qwen's, made of the words that the project's
# own files have at least twice and of made-up words.  What is encoded are those files, several times
# over: English and code; one word in ten is not a token.

use strict;
use warnings;

use File::Find;
use File::Temp qw(tempdir);
use JSON::PP;

use constant { TOKENS => 150_000, BYTES => 16 << 20, SPEED => 5, LOAD => 1 };

my $rounds = shift @ARGV || 5;
my $build = $ENV{BUILD} || 'build';
my $words = qr/'(?:s|t|re|ve|m|ll|d)|[^\r\na-zA-Z0-9]?[a-zA-Z]+|[0-9]|[ ]?[^\sa-zA-Z0-9]+[\r\n]*
    |\s*[\r\n]+|\s+(?!\S)|\s+/x;

my (%ids, @vocabulary, %ranks, @merges);


# The byte-level alphabet: the character that stands for each byte.
sub alphabet {
    my @printable = (0x21 .. 0x7e, 0xa1 .. 0xac, 0xae .. 0xff);
    my %printable = map { $_ => 1 } @printable;
    my $next = 0x100;

    return map { chr($printable{$_} ? $_ : $next++) } 0 .. 255;
}


sub add_token {
    my ($text) = @_;

    $ids{$text} = push(@vocabulary, $text) - 1 if !exists $ids{$text};
}


# Merges until there is nothing left to merge.
sub encode {
    my @symbols = split //, shift;

    while (@symbols > 1) {
        my ($best, $rank);

        for my $i (0 .. $#symbols - 1) {
            my $r = $ranks{"$symbols[$i] $symbols[$i + 1]"};

            ($best, $rank) = ($i, $r) if defined $r && (!defined $rank || $r < $rank);
        }
        last if !defined $best;
        splice @symbols, $best, 2, $symbols[$best] . $symbols[$best + 1];
    }
    return @symbols;
}


# Adds merges until a word is one token.
sub add_word {
    my @symbols = encode(shift);

    while (@symbols > 1 && @vocabulary < TOKENS) {
        my $pair = "$symbols[0] $symbols[1]";

        $ranks{$pair} = push(@merges, $pair) - 1;
        add_token($symbols[0] . $symbols[1]);
        @symbols = encode(join '', @symbols);
    }
}


sub made_up_word {
    my @onsets = qw(b c d f g h j k l m n p r s t v w z br ch cl dr fl gr pl sh st th tr);
    my @vowels = qw(a e i o u ai ea io ou y);
    my @codas = ('', '', '', qw(n r s t l m nd st ck ng));

    return join '', map { $onsets[rand @onsets] . $vowels[rand @vowels] . $codas[rand @codas] }
        1 .. 2 + int rand 3;
}


sub project_text {
    my $text = '';

    find({ no_chdir => 1, preprocess => sub { sort @_ }, wanted => sub {
        return if !/\.(?:c|h|md|pl|t)$/ || !-f;
        open my $file, '<', $_ or die "$_: $!\n";
        local $/;
        $text .= <$file>;
    } }, qw(README.md engine http kernels t));
    return $text;
}


sub make_vocabulary {
    my ($text) = @_;
    my @alphabet = alphabet();
    my %counts;

    $counts{$1}++ while $text =~ /($words)/g;
    add_token($_) for @alphabet;
    for my $word (sort { $counts{$b} <=> $counts{$a} || $a cmp $b } keys %counts) {
        last if $counts{$word} < 2;
        add_word(join '', map { $alphabet[ord] } split //, $word);
    }
    srand 1;
    add_word((rand 3 < 2 ? $alphabet[ord ' '] : '') . made_up_word()) while @vocabulary < TOKENS;
}


sub write_tokenizer {
    my ($path) = @_;
    my $pattern = q{(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}}
        . q{| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+};

    open my $file, '>', $path or die "$path: $!\n";
    print {$file} JSON::PP->new->utf8->encode({
        normalizer => { type => 'NFC' },
        pre_tokenizer => { type => 'Sequence', pretokenizers => [
            { type => 'Split', pattern => { Regex => $pattern }, behavior => 'Isolated' },
            { type => 'ByteLevel', add_prefix_space => \0, use_regex => \0 } ] },
        decoder => { type => 'ByteLevel' },
        model => { type => 'BPE', vocab => \%ids, merges => [ map { [ split / / ] } @merges ] },
        added_tokens => [ { id => TOKENS, content => '<|im_end|>', special => \1 } ] });
    close $file or die "$path: $!\n";
}

-x "$build/bench/tokenizer" or die "make $build/bench/tokenizer\n";

my $directory = tempdir(CLEANUP => 1);
my $text = project_text();

make_vocabulary($text);
write_tokenizer("$directory/tokenizer.json");
open my $file, '>', "$directory/text" or die "$directory/text: $!\n";
print {$file} substr $text x (1 + BYTES / length $text), 0, BYTES;
close $file or die "$directory/text: $!\n";

my ($load, $speed, $ratio) = split ' ', `$build/bench/tokenizer $directory $directory/text $rounds`;

die "$build/bench/tokenizer failed\n" if $? != 0;
printf "tokenizer of %d tokens, tokenizer.json of %.1f MB: ready in %.2f s (at most %d),"
    . " %.1f MB/s (at least %d), %.2f bytes per token (medians of %d)\n",
    TOKENS, (-s "$directory/tokenizer.json") / 1e6, $load, LOAD, $speed, SPEED, $ratio, $rounds;
