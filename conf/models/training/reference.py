#!/usr/bin/env python3
"""Independent numpy float32 reference for the exported model (no torch, no KV cache).

  reference.py chat "question" [...]     greedy answers (one chat, several user turns)
  reference.py complete "text"           greedy plain completion
  reference.py check eval.tsv N          greedy answers for N lines, compared with the file
  reference.py golden golden.json        golden data for engine tests

It reads only config.json, tokenizer.json and model.safetensors from the model directory and
follows the HF DeepseekV3ForCausalLM code path literally (rope: de-interleave, then rotate_half).
"""
import json
import os
import sys

if 'avx512f' in open('/proc/cpuinfo').read():
    os.environ.setdefault('OPENBLAS_CORETYPE', 'SkylakeX')
import numpy as np                                           # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bpe                                                   # noqa: E402

DIR = os.environ.get('MODEL', os.path.join(HERE, os.pardir, 'nginx-directives-moe'))


def load():
    cfg = json.load(open(os.path.join(DIR, 'config.json')))
    raw = open(os.path.join(DIR, 'model.safetensors'), 'rb').read()
    n = int.from_bytes(raw[:8], 'little')
    w = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == '__metadata__':
            continue
        a, b = (8 + n + o for o in t['data_offsets'])
        if t['dtype'] == 'BF16':
            x = (np.frombuffer(raw[a:b], '<u2').astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw[a:b], '<f4').astype(np.float32)
        w[name] = x.reshape(t['shape'])
    return cfg, w


def rms(x, w, eps):
    return w * (x / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float32) + np.float32(eps)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def mlp(w, p, x):
    g = x @ w[p + 'gate_proj.weight'].T
    return (g * sigmoid(g) * (x @ w[p + 'up_proj.weight'].T)) @ w[p + 'down_proj.weight'].T


def rotate(x, cos, sin):
    x = np.concatenate((x[..., 0::2], x[..., 1::2]), -1)     # interleaved -> halves
    h = x.shape[-1] // 2
    return x * cos + np.concatenate((-x[..., h:], x[..., :h]), -1) * sin


def attention(c, w, p, x):
    n, nh, dn, dr, dv, kr = (len(x), c['num_attention_heads'], c['qk_nope_head_dim'], c['qk_rope_head_dim'],
                             c['v_head_dim'], c['kv_lora_rank'])
    q = rms(x @ w[p + 'q_a_proj.weight'].T, w[p + 'q_a_layernorm.weight'], 1e-6) @ w[p + 'q_b_proj.weight'].T
    q = q.reshape(n, nh, dn + dr).transpose(1, 0, 2)
    kv = x @ w[p + 'kv_a_proj_with_mqa.weight'].T
    kvb = rms(kv[:, :kr], w[p + 'kv_a_layernorm.weight'], 1e-6) @ w[p + 'kv_b_proj.weight'].T
    kvb = kvb.reshape(n, nh, dn + dv).transpose(1, 0, 2)
    inv = 1.0 / c['rope_theta'] ** (np.arange(0, dr, 2, dtype=np.float32) / dr)
    ang = np.outer(np.arange(n, dtype=np.float32), inv).astype(np.float32)
    cos, sin = (np.concatenate((f(ang), f(ang)), -1) for f in (np.cos, np.sin))
    qq = np.concatenate((q[..., :dn], rotate(q[..., dn:], cos, sin)), -1)
    kr_ = np.broadcast_to(rotate(kv[:, kr:], cos, sin), (nh, n, dr))
    kk = np.concatenate((kvb[..., :dn], kr_), -1)
    s = qq @ kk.transpose(0, 2, 1) * np.float32((dn + dr) ** -0.5)
    s = np.where(np.tril(np.ones((n, n), bool)), s, np.float32(-np.inf))
    o = (softmax(s) @ kvb[..., dn:]).transpose(1, 0, 2).reshape(n, nh * dv)
    return o @ w[p + 'o_proj.weight'].T


def moe(c, w, p, x, aux):
    E, ng, tg, k = c['n_routed_experts'], c['n_group'], c['topk_group'], c['num_experts_per_tok']
    scores = sigmoid(x @ w[p + 'gate.weight'].T)
    choice = scores + w[p + 'gate.e_score_correction_bias']
    groups = np.sort(choice.reshape(-1, ng, E // ng), -1)[..., -2:].sum(-1)
    gorder = np.argsort(-groups, -1, kind='stable')
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, gorder[:, :tg], True, 1)
    masked = np.where(np.repeat(mask, E // ng, 1), choice, np.float32(0))
    order = np.argsort(-masked, -1, kind='stable')
    idx = order[:, :k]
    wt = np.take_along_axis(scores, idx, 1)
    if c['norm_topk_prob']:
        wt = wt / (wt.sum(-1, keepdims=True) + np.float32(1e-20))
    wt = wt * np.float32(c['routed_scaling_factor'])
    if aux is not None:
        gs = np.take_along_axis(groups, gorder, 1)
        ms = np.take_along_axis(masked, order, 1)
        aux['margin'] = np.minimum(aux.get('margin', np.inf), np.minimum(gs[:, tg - 1] - gs[:, tg], ms[:, k - 1] - ms[:, k]))
        aux.setdefault('load', []).append(np.bincount(idx.ravel(), minlength=E))
    y = np.zeros_like(x)
    for e in range(E):
        t, s = np.nonzero(idx == e)
        if len(t):
            y[t] += wt[t, s][:, None] * mlp(w, p + 'experts.%d.' % e, x[t])
    return y + mlp(w, p + 'shared_experts.', x)


def layer(c, w, l, x, aux):
    p = 'model.layers.%d.' % l
    x = x + attention(c, w, p + 'self_attn.', rms(x, w[p + 'input_layernorm.weight'], c['rms_norm_eps']))
    h = rms(x, w[p + 'post_attention_layernorm.weight'], c['rms_norm_eps'])
    return x + (mlp(w, p + 'mlp.', h) if l < c['first_k_dense_replace'] else moe(c, w, p + 'mlp.', h, aux))


def forward(c, w, ids, aux=None):
    """-> hidden states after the final norm [n,H], logits [n,V]"""
    x = w['model.embed_tokens.weight'][ids]
    for l in range(c['num_hidden_layers']):
        x = layer(c, w, l, x, aux)
    h = rms(x, w['model.norm.weight'], c['rms_norm_eps'])
    return h, h @ w['lm_head.weight'].T


def mtp(c, w, ids, h):
    """Draft logits [n-1,V]: row i (from h[i] and token i+1) predicts token i+2.
    h is the main model's output AFTER the final norm (as vLLM and SGLang feed it)."""
    l = c['num_hidden_layers']
    p = 'model.layers.%d.' % l
    eps = c['rms_norm_eps']
    e = w[p + 'embed_tokens.weight'][ids[1:]]
    x = np.concatenate((rms(e, w[p + 'enorm.weight'], eps), rms(h[:len(e)], w[p + 'hnorm.weight'], eps)), -1)
    x = layer(c, w, l, x @ w[p + 'eh_proj.weight'].T, None)
    return rms(x, w[p + 'shared_head.norm.weight'], eps) @ w[p + 'shared_head.head.weight'].T


def greedy(c, w, ids, n, margins=None):
    ids, out = list(ids), []
    for _ in range(n):
        lg = forward(c, w, ids)[1][-1]
        t = int(lg.argmax())
        if margins is not None:
            s = np.partition(lg, -2)
            margins.append(float(s[-1] - s[-2]))
        out.append(t)
        ids.append(t)
        if t == c['eos_token_id']:
            break
    return out


def prompt_ids(tok, turns, system=None):
    """What the chat template renders, with the generation prompt.  turns: q, a, q, a, ..., q"""
    s = '<|bos|>' + ('<|system|>' + system if system else '')
    for i, t in enumerate(turns):
        s += ('<|user|>' + t) if i % 2 == 0 else ('<|assistant|>' + t + '<|eos|>')
    return tok.encode_special(s + '<|assistant|>'), s + '<|assistant|>'


GOLDEN = [
    (None, ['What is the default value of gzip_comp_level?']),
    (None, ['syntax of proxy_cache_path']),
    (None, ['Where can I use `proxy_pass`?']),
    (None, ['Is gzip allowed in location?']),
    (None, ['Can I use worker_processes in http?']),
    (None, ['Which module provides limit_req_zone?']),
    (None, ['Since which version is http2 available?']),
    (None, ['What is keepalive_timeout?']),
    (None, ['listen syntax?']),
    (None, ['What is the default of ssl_session_timeout in stream?']),
    (None, ['Which module provides $upstream_cache_status?']),
    (None, ['hello']),
    (None, ['Who are you?']),
    (None, ['What is proxy_magic_level?']),
    (None, ['What is the capital of France?']),
    ('You are a helpful nginx assistant. Answer briefly.', ['Where may client_max_body_size be used?']),
    ('You help people with nginx.', ['What can you tell me about access_log?']),
    (None, ['What is the syntax of gzip?', 'Syntax of `gzip`:\n\n```nginx\ngzip on | off;\n```', 'And the default?']),
    (None, ['Which module provides autoindex?', '`autoindex` is provided by `ngx_http_autoindex_module`.', 'What about gzip_static?']),
    (None, ['hi', 'Hello! Ask me about an nginx directive, for example:\n\n- `gzip default?`\n- `where can I use proxy_pass?`',
            'syntax of proxy_next_upstream', 'Syntax of `proxy_next_upstream`:\n\n```nginx\nproxy_next_upstream error | timeout | denied | invalid_header | '
            'http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | off ...;\n```',
            'Is it allowed in main?', '`proxy_next_upstream` can be used in `http`, `server` and `location`. So **no**, it is not allowed in `main`.',
            'and what is its default?']),
    (None, None, 'Syntax: gzip_types'),
    (None, None, 'Directive: worker_connections\n'),
]


TOKENIZER_CASES = [
    'hello', ' hello', 'Hello, world!', 'What is the default of gzip_comp_level?', '`proxy_pass` and "proxy_pass"',
    'gzip_types text/plain application/xml;', '```nginx\nlocation ~* \\.(gif|jpg)$ { ... }\n```', '$upstream_cache_status',
    '1', '12', '123', '1234', '1234567', '1.27.3', '4k|8k', 'TLSv1.2 TLSv1.3', 'a  b', 'a   b', ' ', '  ', '   x', '\n', '\n\n', 'a\n', 'a \n b',
    '\r\n', 'a\r\n\r\nb', '\tif ($x) {\n\t\treturn 301;\n\t}\n', "it's", "I'm we'll", 'snake_case_name', 'CamelCase', 'UPPER_case9', '-1', '+x', '#!/bin/sh',
    '---', '...', '!!!', '((a))', 'a/b/c', 'user@example.com', 'https://nginx.org/en/docs/', '\u00e9t\u00e9', 'na\u00efve caf\u00e9', '\u4f60\u597d\uff0c\u4e16\u754c',
    '\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8', '\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440', '\u03a9\u2248\u00e7', '\u20ac5', '\u00bd \u00b2', '\u0663\u0664\u0665\u0666', '\U0001f600', 'e\u0301', '\u00a0x', '\u3000x', '\u201cquoted\u201d', '\u2026',
    '<|user|>hi<|assistant|>', 'a<|eos|>b', '<|bos|><|system|>s', '<|nope|>', '<|user |>', '', '\x00\x01', '\x7f']


def cmd_golden(path):
    c, w = load()
    tok = bpe.Tokenizer.load(os.path.join(DIR, 'tokenizer.json'))
    items = []
    for g in GOLDEN:
        if g[1] is None:
            text = '<|bos|>' + g[2]
            ids = tok.encode_special(text)
            it = {'prompt': g[2], 'add_bos': True}
        else:
            ids, text = prompt_ids(tok, g[1], g[0])
            msgs = [{'role': 'system', 'content': g[0]}] if g[0] else []
            msgs += [{'role': ('user', 'assistant')[i % 2], 'content': t} for i, t in enumerate(g[1])]
            it = {'messages': msgs}
        aux, margins = {}, []
        h, lg = forward(c, w, ids, aux)
        top = np.argsort(-lg, -1, kind='stable')[:, :20]
        out = greedy(c, w, ids, 48, margins)
        full = ids + out
        hf, _ = forward(c, w, full)
        d = mtp(c, w, full, hf).argmax(-1)
        it.update({
            'text': text, 'ids': ids,
            'top20': [{'ids': top[i].tolist(), 'logits': [round(float(x), 5) for x in lg[i, top[i]]]} for i in range(len(ids))],
            'router_margin': [round(float(x), 6) for x in aux['margin']],
            'greedy': out, 'greedy_text': tok.decode(out), 'greedy_margin': [round(x, 4) for x in margins],
            'mtp_draft': d.tolist()})
        items.append(it)
        print(repr(text), '->', repr(it['greedy_text']))
    note = ('float32 numpy forward of the BF16 weights. top20[i]: the 20 largest logits after prompt token i. '
            'router_margin[i]: smallest selection gap (experts or groups, over the MoE layers) at token i; where it is tiny '
            'another summation order may choose other experts. greedy: up to 48 tokens, ends with <|eos|> (1) when reached. '
            'greedy_margin: top-1 minus top-2 logit of each. mtp_draft[i]: argmax of the MTP head at position i of ids+greedy, '
            'from hidden state i (after the final norm) and token i+1; it drafts token i+2.')
    with open(path, 'w') as f:
        cases = [{'text': t, 'ids': tok.encode_special(t)} for t in TOKENIZER_CASES]      # without the automatic <|bos|>
        json.dump({'note': note, 'items': items, 'tokenizer': cases}, f, separators=(',', ':'))
        f.write('\n')


def cmd_chat(*qs):
    c, w = load()
    tok = bpe.Tokenizer.load(os.path.join(DIR, 'tokenizer.json'))
    turns = []
    for q in qs:
        turns.append(q)
        out = greedy(c, w, prompt_ids(tok, turns)[0], 400)
        turns.append(tok.decode(out))
        print('>>> %s\n%s\n' % (q, turns[-1]))


def cmd_complete(text):
    c, w = load()
    tok = bpe.Tokenizer.load(os.path.join(DIR, 'tokenizer.json'))
    print(text + tok.decode(greedy(c, w, [c['bos_token_id']] + tok.encode(text), 200)))


def cmd_check(path, n):
    c, w = load()
    tok = bpe.Tokenizer.load(os.path.join(DIR, 'tokenizer.json'))
    rows = [l.rstrip('\n').split('\t') for l in open(path, encoding='utf-8')][1:]
    step = max(1, len(rows) // int(n))
    agree = good = tot = 0
    for r in rows[::step]:
        exp = r[3].replace('\\n', '\n')
        got = tok.decode(greedy(c, w, prompt_ids(tok, [r[2]])[0], 400))
        agree += (got == exp) == (r[4] == '1')
        good += got == exp
        tot += 1
        if (got == exp) != (r[4] == '1'):
            print('DIFFERS', r, repr(got))
    print('checked %d: exact %d, agree with the torch verdict %d' % (tot, good, agree))


if __name__ == '__main__':
    globals()['cmd_' + sys.argv[1]](*sys.argv[2:])
