#!/usr/bin/env python3
"""Ids of Hugging Face's tokenizers library, SentencePiece and tiktoken, for tokenizers trained here.

  python3 -m venv /tmp/venv
  /tmp/venv/bin/pip install tokenizers==0.22.2 sentencepiece==0.2.1 tiktoken==0.12.0
  /tmp/venv/bin/python t/golden/tokenizers.py [NAME ...]             # all, or these anew
  /tmp/venv/bin/python t/golden/tokenizers.py --show NAME NUMBER     # one text and its ids

Writes t/golden/tokenizers: NAME/tokenizer.json for each configuration below; spm-bpe.gguf.json, the
metadata of a GGUF file, for SentencePiece; tiktoken/tiktoken.model; and ids.json: for each of them hashes over the ids of a
hundred texts at a time, and over what the ids decode to.  The texts are those of tokenizer_lines.h,
which makes them again.
"""
import base64
import collections
import hashlib
import io
import json
import os
import sys

sys.path.pop(0)         # this file has the library's name

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'tokenizers')
MASK = (1 << 64) - 1
TEXT_LIMIT = 8192
GROUP = 100
TEXTS = 10000
TRAINING = range(1000000, 1004000)
VOCABULARY = 1100
UNKNOWN_FROM = 0x530     # characters that Unigram knows end here


class Texts:
    """The generator of tokenizer_lines.h."""

    def __init__(self):
        with open(os.path.join(FOLDER, 'lines.json'), encoding='utf-8') as file:
            tables = json.load(file)
        self.words = [word.encode() for word in tables['words']]
        self.spaces = [space.encode() for space in tables['spaces']]
        self.ranges = tables['ranges']

    def random(self, below):
        self.state = z = (self.state + 0x9e3779b97f4a7c15) & MASK
        z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ z >> 27) * 0x94d049bb133111eb) & MASK
        return ((z ^ z >> 31) >> 32) % below

    def add(self, data):
        if len(data) <= TEXT_LIMIT - len(self.text):
            self.text += data

    def add_one_of(self, texts):
        self.add(texts[self.random(len(texts))])

    def add_character(self, first, last):
        self.add(chr(first + self.random(last - first + 1)).encode())

    def add_noise(self):
        first, last = self.ranges[self.random(len(self.ranges))]
        for _ in range(1 + self.random(8)):
            self.add_character(first, last)

    def add_run(self):
        count = 2 + self.random(400 if self.random(8) == 0 else 20)
        start = len(self.text)
        kind = self.random(3)
        if kind == 0:
            self.add_one_of(self.words)
        elif kind == 1:
            self.add_one_of(self.spaces)
        else:
            self.add_character(0x20, 0x7e)
        part = bytes(self.text[start:])
        for _ in range(count - 1):
            self.add(part)

    def add_part(self):
        kind = self.random(20)
        if kind < 12:
            self.add_one_of(self.words)
        elif kind < 14:
            self.add_noise()
        elif kind < 15:
            self.add_run()
        elif kind < 17:
            for _ in range(1 + self.random(12)):
                self.add_character(0x30, 0x39)
        if self.random(3) > 0:
            self.add_one_of(self.spaces)

    def make(self, number):
        self.state = (number * 0xd1342543de82ef95) & MASK
        self.text = bytearray()
        if self.random(200) == 0:
            for _ in range(500 + self.random(3000)):
                self.add_character(ord('a'), ord('e'))
        for _ in range(1 + self.random(60 if self.random(10) == 0 else 10)):
            self.add_part()
        return self.text.decode()


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r'\s*[\r\n]+|\s+(?!\S)|\s+'
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = CONTRACTIONS + r'|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|' + BLANKS
QWEN2 = CONTRACTIONS + r'|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|' + BLANKS
QWEN35 = CONTRACTIONS + (r'|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}'
                         r'| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|') + BLANKS
UPPER, LOWER = r'\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}', r'\p{Ll}\p{Lm}\p{Lo}\p{M}'


def cased(but):
    start = r'[^\r\n\p{L}\p{N}]?'
    return (f'{start}[{UPPER}{but}]*[{LOWER}{but}]+{CONTRACTIONS}?'
            f'|{start}[{UPPER}{but}]+[{LOWER}{but}]*{CONTRACTIONS}?')


O200K = cased('') + r'|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|' + BLANKS
KIMI = (r'[\p{Han}]+|' + cased(r'&&[^\p{Han}]') + r'|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|'
        + BLANKS)
DEEPSEEK_V3 = [
    r'\p{N}{1,3}', '[一-龥\u3040-ゟ゠-ヿ]+',
    r'[!"#$%&' "'" r'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+'
    r'|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|' + BLANKS]
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
           r'|\s*[\r\n]|\s+(?!\S)|\s+')


def token(text, **flags):
    flags = {'special': True, 'normalized': False, **flags}
    return AddedToken(text, **flags)


SPECIAL = [token('<|im_start|>'), token('<|im_end|>'), token('<think>', special=False),
           token('</think>', special=False)]
FLAGS = [token('<tool>', special=False, normalized=True), token('[MASK]', lstrip=True),
         token('</p>', rstrip=True), token('word', special=False, single_word=True)]


def splits(*patterns, behavior='isolated', invert=False, digits=False, gpt2=False):
    """Splits by regexes, then the byte-level alphabet."""
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    steps += [pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)
              for pattern in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2))
    return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]


def begin(text, number):
    return processors.TemplateProcessing(single=f'{text} $A', special_tokens=[(text, number)])


def byte_level(training, steps, normalizer=None, added=SPECIAL, whole=0, ignore_merges=True,
               bos=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = steps
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(training, trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    if whole:                   # tokens that no merges make, found by ignore_merges only
        made = json.loads(tokenizer.to_str())
        vocabulary = made['model']['vocab']
        made['model']['ignore_merges'] = ignore_merges
        pieces = collections.Counter(piece for text in training
                                     for piece, _ in steps.pre_tokenize_str(text))
        for text, _ in sorted(pieces.items(), key=lambda item: (-item[1], item[0])):
            if text not in vocabulary and whole > 0:
                vocabulary[text] = len(vocabulary)
                whole -= 1
        tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.add_tokens(added)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if bos is not None:
        tokenizer.post_processor = processors.Sequence(
            [tokenizer.post_processor, begin(bos, tokenizer.token_to_id(bos))])
    return json.loads(tokenizer.to_str())


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(replacement='▁', prepend_scheme=scheme, split=split)


SPM_NORMALIZER = {'type': 'Sequence', 'normalizers': [
    {'type': 'Prepend', 'prepend': '▁'},
    {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '▁'}]}
SPM_DECODER = {'type': 'Sequence', 'decoders': [
    {'type': 'Replace', 'pattern': {'String': '▁'}, 'content': ' '}, {'type': 'ByteFallback'},
    {'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}
BYTES = [f'<0x{byte:02X}>' for byte in range(256)]


def sentence_piece_bpe(training, bytes_too=True, fuse=True, steps=None):
    """Trained by words, used on whole texts, as models converted from SentencePiece are."""
    names = ['<unk>', '<s>', '</s>']
    tokenizer = Tokenizer(models.BPE(unk_token='<unk>'))
    tokenizer.pre_tokenizer = metaspace('always', True)
    tokenizer.train_from_iterator(training, trainers.BpeTrainer(
        vocab_size=VOCABULARY + 300, limit_alphabet=400, show_progress=False,
        special_tokens=names + (BYTES if bytes_too else [])))
    tokenizer.post_processor = begin('<s>', 1)
    result = json.loads(tokenizer.to_str())
    result['added_tokens'] = [t for t in result['added_tokens'] if t['content'] in names]
    result['model'].update(byte_fallback=bytes_too, fuse_unk=fuse)
    result['decoder'] = SPM_DECODER
    if steps is None:
        result.update(normalizer=SPM_NORMALIZER, pre_tokenizer=None)
    else:
        result['pre_tokenizer'] = json.loads(steps.__getstate__())
    return result


def unigram(training, normalizer=None):
    training = [''.join(c for c in text if ord(c) < UNKNOWN_FROM) for text in training
                if not any(name in text for name in ['<unk>', '</s>', '<0x41>'])]
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = metaspace('always', True)
    tokenizer.decoder = decoders.Metaspace(replacement='▁', prepend_scheme='always', split=True)
    tokenizer.train_from_iterator(training, trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=['<unk>', '</s>'], unk_token='<unk>',
        show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single='$A </s>',
                                                             special_tokens=[('</s>', 1)])
    result = json.loads(tokenizer.to_str())
    model = result['model']
    # a few digits, so that every reader takes them for the same numbers
    model['vocab'] = [[text, round(score, 6)] for text, score in model['vocab']]
    return result


def sentence_piece_unigram(training):
    result = unigram(training)
    vocabulary = result['model']['vocab']
    lowest = min(score for _, score in vocabulary)
    # In GGUF no text is cut into the tokens of bytes; here one that the texts have is found before.
    result['added_tokens'].append({**result['added_tokens'][0], 'content': '<0x41>',
                                   'id': len(vocabulary) + 0x41})
    vocabulary += [[text, lowest] for text in BYTES]
    result['model']['byte_fallback'] = True
    result.update(normalizer=SPM_NORMALIZER, pre_tokenizer=None, decoder=SPM_DECODER)
    return result


def known_splits(*patterns, **settings):
    return lambda training: byte_level(training, splits(*patterns), **settings)


# With each the tokenizer.ggml.pre of GGUF that stands for the same, where there is one; t5 is a
# tokenizer.ggml.model.
CONFIGURATIONS = {
    'o200k': ('gpt-4o', known_splits(O200K)),
    'qwen2': ('qwen2', known_splits(QWEN2, normalizer=normalizers.NFC())),
    'qwen35': ('qwen35', known_splits(QWEN35, normalizer=normalizers.NFC())),
    'llama3': ('llama-bpe', known_splits(CL100K, bos='<|im_start|>', whole=10)),
    'glm': ('glm4', lambda training: byte_level(
        training, splits(CL100K, behavior='removed', invert=True), whole=10, ignore_merges=False)),
    'deepseek-v3': ('deepseek-v3', known_splits(
        *DEEPSEEK_V3, added=[token('<｜begin▁of▁sentence｜>')] + SPECIAL + FLAGS[:1])),
    'gpt2': (None, lambda training: byte_level(
        training, splits(gpt2=True), normalizer=normalizers.NFC(), added=FLAGS)),
    'starcoder': ('starcoder', lambda training: byte_level(training,
                                                           splits(gpt2=True, digits=True))),
    'kimi': ('kimi-k2', known_splits(KIMI, whole=10)),
    'bailing': ('bailingmoe2', known_splits(BAILING)),
    'mixtral': (None, sentence_piece_bpe),
    'mixtral-first': (None, lambda training: sentence_piece_bpe(
        training, steps=metaspace('first', False))),
    'unknown-fused': (None, lambda training: sentence_piece_bpe(training, bytes_too=False)),
    'unknown': (None, lambda training: sentence_piece_bpe(training, bytes_too=False, fuse=False)),
    'unigram': (None, lambda training: unigram(training, normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(' {2,}'), ' ')]))),
    'unigram-bytes': ('t5', sentence_piece_unigram),
}


def sentence_piece(training):
    """A model of SentencePiece as GGUF holds it, and its processor."""
    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training), model_writer=data, model_type='bpe',
        vocab_size=VOCABULARY + 300, byte_fallback=True, normalization_rule_name='identity',
        remove_extra_whitespaces=False, character_coverage=0.98, max_sentence_length=TEXT_LIMIT,
        num_threads=1, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data.getvalue())
    types = [2 if processor.is_unknown(i) else 3 if processor.is_control(i)
             else 6 if processor.is_byte(i) else 1 for i in range(len(processor))]
    metadata = {
        'model': 'llama', 'tokens': [processor.id_to_piece(i) for i in range(len(processor))],
        'scores': [processor.get_score(i) for i in range(len(processor))],
        'token_type': types, 'unknown_token_id': processor.unk_id(), 'add_bos_token': False}
    return {'tokenizer.ggml.' + key: value for key, value in metadata.items()}, processor


def rank_bpe(training):
    """Kimi's form: tokens and ranks, and a configuration that names some special tokens."""
    made = known_splits(KIMI, added=[], whole=10)(training)
    to_byte = {c: byte for byte, c in alphabet().items()}
    ranks = {bytes(to_byte[c] for c in text): rank
             for text, rank in made['model']['vocab'].items()}
    named = {len(ranks): '<|im_start|>', len(ranks) + 1: '<|im_end|>', len(ranks) + 7: '[MASK]'}
    config = {'added_tokens_decoder': {str(i): {'content': text, 'special': True}
                                       for i, text in named.items()}}
    special = {named.get(i, f'<|reserved_token_{i}|>'): i
               for i in range(len(ranks), len(ranks) + 256)}
    return ranks, config, tiktoken.Encoding('kimi', pat_str=KIMI, mergeable_ranks=ranks,
                                            special_tokens=special)


def alphabet():
    """The character of the byte-level alphabet for each byte."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable},
            **{byte: chr(0x100 + i) for i, byte in enumerate(others)}}


def digest(parts):
    return hashlib.sha256(b''.join(parts)).hexdigest()[:16]


def hashes(texts, encode, decode):
    """Of the ids, as 32 bits each with all ones behind a text, and of what they decode to."""
    result = {'ids': [], 'texts': []}
    for start in range(0, len(texts), GROUP):
        ids = [encode(text) for text in texts[start:start + GROUP]]
        result['ids'].append(digest(b''.join(i.to_bytes(4, 'little') for i in line + [MASK >> 32])
                                    for line in ids))
        result['texts'].append(digest(decode(line).encode() + b'\xff' for line in ids))
    return result


def write(name, value, **options):
    path = os.path.join(FOLDER, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        json.dump(value, file, ensure_ascii=False, **options)
        file.write('\n')


def show(name, number):
    text = Texts().make(number)
    with open(os.path.join(FOLDER, name, 'tokenizer.json'), encoding='utf-8') as file:
        encoding = Tokenizer.from_str(file.read()).encode(text)
    print(json.dumps(text), encoding.ids, encoding.tokens, sep='\n')


def main(names):
    texts = Texts()
    training = [texts.make(number) for number in TRAINING]
    lines = [texts.make(number) for number in range(TEXTS)]
    result = {}
    if names:
        with open(os.path.join(FOLDER, 'ids.json'), encoding='utf-8') as file:
            result = json.load(file)
    for name in names or [*CONFIGURATIONS, 'spm-bpe', 'tiktoken']:
        print(name, file=sys.stderr)
        if name == 'spm-bpe':
            metadata, processor = sentence_piece(training)
            write('spm-bpe.gguf.json', metadata, separators=(',', ':'))
            result[name] = hashes(lines, processor.encode, processor.decode)
            continue
        if name == 'tiktoken':
            ranks, config, encoding = rank_bpe(training)
            write('tiktoken/tokenizer_config.json', config)
            with open(os.path.join(FOLDER, 'tiktoken', 'tiktoken.model'), 'wb') as file:
                file.write(b''.join(base64.b64encode(data) + b' %d\n' % rank
                                    for data, rank in ranks.items()))
            result[name] = hashes(lines, lambda text: encoding.encode(text, allowed_special='all'),
                                  encoding.decode)
            continue
        pre, make = CONFIGURATIONS[name]
        made = make(training)
        if pre is None and 'merges' in made['model']:           # the older form of merges
            made['model']['merges'] = [' '.join(merge) for merge in made['model']['merges']]
        tokenizer = Tokenizer.from_str(json.dumps(made))
        write(f'{name}/tokenizer.json', made, separators=(',', ':'))
        result[name] = {'pre': pre, **hashes(
            lines, lambda text: tokenizer.encode(text).ids,
            lambda ids: tokenizer.decode(ids, skip_special_tokens=False))}
    write('ids.json', result, indent=0)


if __name__ == '__main__':
    if len(sys.argv) == 4 and sys.argv[1] == '--show':
        show(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1:])
