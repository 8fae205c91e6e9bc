#!/usr/bin/env python3
"""Expected logits of tiny random models, computed in double precision with numpy.

  tiny_models.py > tiny_models.json

The models are those of t/unit/tiny_model.h: weights come from the same generator in the same
order, so that only options and results have to be kept.  The maths follows the published
reference code of each family (MLA expanded, not absorbed), independently of the engine.
"""
import json
import math
import sys

import numpy as np

MASK = (1 << 64) - 1

DEFAULTS = dict(
    model_type='deepseek_v3', topk_method='noaux_tc', scoring='sigmoid', dtype='BF16', hidden=64,
    vocabulary=96, layers=3, dense_layers=1, context=256, heads=4, q_lora=24, kv_lora=32, nope=16,
    rope=8, value=16, dense_width=96, expert_width=32, experts=8, top_k=3, groups=4, groups_kept=2,
    shared=1, normalise=1, tied=0, yarn=0, interleaved=1, mtp=1, scale=2.5, kv_heads=0, head=0,
    biases=0, qk_norm=0, rotary=0, window=0, seed=1)
V2 = dict(model_type='deepseek_v2', topk_method='greedy', scoring='softmax', q_lora=0, groups=1,
          groups_kept=1, shared=2, normalise=0, mtp=0, scale=1.0, yarn=1)
GQA = dict(topk_method='greedy', scoring='softmax', groups=1, groups_kept=1, shared=0, normalise=0,
           dense_layers=0, mtp=0, scale=1.0, heads=6, kv_heads=2, head=16)
SIGMOID = dict(GQA, topk_method='noaux_tc', scoring='sigmoid', normalise=1, rotary=8)
GLM = dict(SIGMOID, model_type='glm4_moe', dense_layers=1, shared=1, mtp=1, scale=2.5, biases=1)
GPT_OSS = dict(GQA, model_type='gpt_oss', biases=1, normalise=1, window=12, yarn=1)
LIMIT, ALPHA = 0.75, 1.702      # of gpt-oss's activation
VARIANTS = {
    'V3': dict(),
    'V3, plain queries, F32, half rotation': dict(q_lora=0, dtype='F32', interleaved=0, seed=2),
    'V3, no groups, no shared expert, not normalised': dict(groups=1, groups_kept=1, shared=0,
                                                            normalise=0, seed=3),
    'Kimi-K2, tied head, YaRN': dict(model_type='kimi_k2', groups=1, groups_kept=1, tied=1, yarn=1,
                                     mtp=0, scale=2.827, seed=4),
    'V2-Lite, F16': dict(V2, dtype='F16', seed=5),
    'V2, group-limited': dict(V2, topk_method='group_limited_greedy', q_lora=24, groups=4,
                              groups_kept=2, scale=16.0, seed=6),
    'V2, normalised': dict(V2, normalise=1, scale=16.0, yarn=0, seed=7),
    'OLMoE': dict(GQA, model_type='olmoe', seed=8),
    'OLMoE, a key per head, normalised, F16': dict(GQA, model_type='olmoe', kv_heads=6, head=10,
                                                   normalise=1, dtype='F16', seed=9),
    'Mixtral': dict(GQA, model_type='mixtral', normalise=1, seed=10),
    'Mixtral, 18 heads for a key, tied': dict(GQA, model_type='mixtral', heads=18, kv_heads=1,
                                              normalise=1, tied=1, seed=11),
    'Qwen3-MoE': dict(GQA, model_type='qwen3_moe', normalise=1, seed=12),
    'Qwen3-MoE, dense layer, YaRN': dict(GQA, model_type='qwen3_moe', dense_layers=1, yarn=1,
                                         seed=13),
    'OLMoE, biases': dict(GQA, model_type='olmoe', biases=1, seed=14),
    'Qwen2-MoE': dict(GQA, model_type='qwen2_moe', shared=2, biases=1, seed=16),
    'Qwen2-MoE, dense layer, normalised, no biases': dict(
        GQA, model_type='qwen2_moe', shared=1, dense_layers=1, normalise=1, tied=1, seed=17),
    'Qwen3-MoE, biases': dict(GQA, model_type='qwen3_moe', biases=1, normalise=1, seed=15),
    'Mixtral, windows': dict(GQA, model_type='mixtral', normalise=1, window=7, seed=18),
    'Qwen2-MoE, windows': dict(GQA, model_type='qwen2_moe', shared=1, window=5, seed=19),
    'Qwen3-MoE, windows': dict(GQA, model_type='qwen3_moe', window=1, seed=26),
    'gpt-oss': dict(GPT_OSS, seed=27),
    'gpt-oss, a window of 1, no biases, F32': dict(GPT_OSS, window=1, biases=0, dtype='F32',
                                                   seed=28),
    'MiniMax-M2': dict(SIGMOID, model_type='minimax_m2', qk_norm=1, seed=20),
    'MiniMax-M2, no norm, F16': dict(SIGMOID, model_type='minimax_m2', rotary=4, dtype='F16',
                                     seed=21),
    'GLM-4.5': dict(GLM, qk_norm=1, seed=25),
    'GLM-4.5-Air, YaRN': dict(GLM, yarn=1, rotary=12, scale=1.0, biases=0, seed=23),
    'GLM-4.7-Flash': dict(model_type='glm4_moe_lite', groups=1, groups_kept=1, value=24, scale=1.8,
                          seed=24),
}
TOKENS = [0, 95, 7, 7, 31, 64, 2, 90, 13, 58, 41, 29, 77, 3, 66, 20, 8, 84, 50, 1]
ROWS = [0, 1, 9, 19]


class Tensors(dict):
    """The generator of tiny_model.h; a tensor holds its values after rounding to its type."""

    def __init__(self, o):
        super().__init__()
        self.o, self.state = o, o['seed']

    def number(self):
        self.state = (self.state + 0x9e3779b97f4a7c15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & MASK
        z = (z ^ z >> 27) * 0x94d049bb133111eb & MASK
        z ^= z >> 31
        return (z >> 11) / 4503599627370496.0 - 1.0

    def tensor(self, name, shape, center, width, dtype=None):
        n = int(np.prod(shape))
        x = np.array([self.number() for _ in range(n)]).astype(np.float32)
        x = np.float32(center) + np.float32(width) * x
        dtype = dtype or self.o['dtype']
        if dtype == 'F16':
            x = x.astype(np.float16)
        elif dtype == 'BF16':
            bits = x.view(np.uint32)
            bits = (bits + np.uint32(0x7fff) + (bits >> 16 & 1)) & np.uint32(0xffff0000)
            x = bits.view(np.float32)
        self[name] = x.astype(np.float64).reshape(shape)

    def weight(self, name, rows, columns):
        self.tensor(name, (rows, columns), 0, np.sqrt(np.float32(3) / np.float32(columns)))

    def norm(self, name, size):
        self.tensor(name, (size,), 1, 0.25)

    def ffn(self, prefix, width):
        hidden = self.o['hidden']
        self.weight(prefix + 'gate_proj.weight', width, hidden)
        self.weight(prefix + 'up_proj.weight', width, hidden)
        self.weight(prefix + 'down_proj.weight', hidden, width)


def block(o):
    return 'block_sparse_moe.' if o['model_type'] in ('mixtral', 'minimax_m2') else 'mlp.'


def make_moe(w, o, m):
    w.weight(m + 'gate.weight', o['experts'], o['hidden'])
    if o['topk_method'] == 'noaux_tc':
        w.tensor(m + 'gate.e_score_correction_bias', (o['experts'],), 0, 0.25, 'F32')
    for e in range(o['experts']):
        w.ffn(m + 'experts.%d.' % e, o['expert_width'])
    if o['shared']:
        w.ffn(m + 'shared_experts.', o['shared'] * o['expert_width'])


def make_gpt_oss_moe(w, o, m):
    e, h, i = o['experts'], o['hidden'], o['expert_width']
    w.weight(m + 'router.weight', e, h)
    w.tensor(m + 'router.bias', (e,), 0, 0.5)
    for name, rows, columns in ('gate_up_proj', h, 2 * i), ('down_proj', i, h):
        w.tensor(m + 'experts.' + name, (e, rows, columns), 0,
                 np.sqrt(np.float32(3) / np.float32(rows)))
        w.tensor(m + 'experts.' + name + '_bias', (e, columns), 0, 0.5)


def make_gqa_layer(w, o, i):
    h, p = o['hidden'], 'model.layers.%d.' % i
    q, kv = o['heads'] * o['head'], o['kv_heads'] * o['head']
    w.norm(p + 'input_layernorm.weight', h)
    w.norm(p + 'post_attention_layernorm.weight', h)
    a = p + 'self_attn.'
    w.weight(a + 'q_proj.weight', q, h)
    w.weight(a + 'k_proj.weight', kv, h)
    w.weight(a + 'v_proj.weight', kv, h)
    w.weight(a + 'o_proj.weight', h, q)
    if o['biases']:
        sizes = dict(q=q, k=kv, v=kv, o=h)
        if o['model_type'] in ('glm4_moe', 'qwen2_moe'):
            del sizes['o']
        for name, size in sizes.items():
            w.tensor(a + name + '_proj.bias', (size,), 0, 0.5)
    if o['model_type'] == 'gpt_oss':
        w.tensor(a + 'sinks', (o['heads'],), 0, 2)
    if o['model_type'] in ('olmoe', 'qwen3_moe') or o['qk_norm']:
        whole = o['model_type'] in ('olmoe', 'minimax_m2')
        w.norm(a + 'q_norm.weight', q if whole else o['head'])
        w.norm(a + 'k_norm.weight', kv if whole else o['head'])
    m = p + block(o)
    if i < o['dense_layers']:
        w.ffn(m, o['dense_width'])
        return
    if o['model_type'] == 'glm4_moe':
        make_moe(w, o, m)
        return
    if o['model_type'] == 'gpt_oss':
        make_gpt_oss_moe(w, o, m)
        return
    w.weight(m + 'gate.weight', o['experts'], h)
    if o['topk_method'] == 'noaux_tc':
        w.tensor(m + 'e_score_correction_bias', (o['experts'],), 0, 0.25, 'F32')
    for e in range(o['experts']):
        if block(o) != 'mlp.':
            w.weight(m + 'experts.%d.w1.weight' % e, o['expert_width'], h)
            w.weight(m + 'experts.%d.w3.weight' % e, o['expert_width'], h)
            w.weight(m + 'experts.%d.w2.weight' % e, h, o['expert_width'])
        else:
            w.ffn(m + 'experts.%d.' % e, o['expert_width'])
    if o['shared']:
        w.ffn(m + 'shared_expert.', o['shared'] * o['expert_width'])
        w.weight(m + 'shared_expert_gate.weight', 1, h)


def make(o):
    w = Tensors(o)
    h = o['hidden']
    w.tensor('model.embed_tokens.weight', (o['vocabulary'], h), 0, 1)
    w.norm('model.norm.weight', h)
    if not o['tied']:
        w.weight('lm_head.weight', o['vocabulary'], h)
    for i in range(o['layers']):                    # the MTP layer comes last and is not needed
        if o['kv_heads']:
            make_gqa_layer(w, o, i)
            continue
        p = 'model.layers.%d.' % i
        w.norm(p + 'input_layernorm.weight', h)
        w.norm(p + 'post_attention_layernorm.weight', h)
        a = p + 'self_attn.'
        rows = o['heads'] * (o['nope'] + o['rope'])
        if o['q_lora']:
            w.weight(a + 'q_a_proj.weight', o['q_lora'], h)
            w.norm(a + 'q_a_layernorm.weight', o['q_lora'])
            w.weight(a + 'q_b_proj.weight', rows, o['q_lora'])
        else:
            w.weight(a + 'q_proj.weight', rows, h)
        w.weight(a + 'kv_a_proj_with_mqa.weight', o['kv_lora'] + o['rope'], h)
        w.norm(a + 'kv_a_layernorm.weight', o['kv_lora'])
        w.weight(a + 'kv_b_proj.weight', o['heads'] * (o['nope'] + o['value']), o['kv_lora'])
        w.weight(a + 'o_proj.weight', h, o['heads'] * o['value'])
        m = p + 'mlp.'
        if i < o['dense_layers']:
            w.ffn(m, o['dense_width'])
        else:
            make_moe(w, o, m)
    return w


def rms(x, weight):
    return weight * x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def ffn(w, prefix, x):
    gate, up, down = ('w1', 'w3', 'w2') if 'block_sparse_moe' in prefix \
        else ('gate_proj', 'up_proj', 'down_proj')
    g = x @ w[prefix + gate + '.weight'].T
    return g / (1 + np.exp(-g)) * (x @ w[prefix + up + '.weight'].T) @ w[prefix + down + '.weight'].T


def mscale(factor, m):
    return 0.1 * m * math.log(factor) + 1


def angles(o, n):
    """Rotation of position p, pair j; the factor on the softmax scale."""
    r = o['rope']
    f = 10000.0 ** (-np.arange(0, r, 2) / r)
    extra = 1.0
    if o['yarn']:
        factor, original, fast, slow = 40, 64, 32, 1

        def dimension(rotations):
            return r * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(10000))
        low = max(math.floor(dimension(fast)), 0)
        high = min(math.ceil(dimension(slow)), r - 1)
        ramp = np.clip((np.arange(r // 2) - low) / (high - low), 0, 1)
        f = f / factor * ramp + f * (1 - ramp)
        extra = mscale(factor, 0.707) ** 2
    return np.outer(np.arange(n), f), extra


def rotate(o, x, angle):
    out = np.empty_like(x)
    half = o['rope'] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if o['interleaved'] \
        else (slice(0, half), slice(half, None))
    a, b = x[..., first], x[..., second]
    out[..., first] = a * np.cos(angle) - b * np.sin(angle)
    out[..., second] = a * np.sin(angle) + b * np.cos(angle)
    return out


def attention(o, w, p, x):
    n, heads, nope, kv = len(x), o['heads'], o['nope'], o['kv_lora']
    angle, extra = angles(o, n)
    if o['q_lora']:
        q = rms(x @ w[p + 'q_a_proj.weight'].T, w[p + 'q_a_layernorm.weight'])
        q = q @ w[p + 'q_b_proj.weight'].T
    else:
        q = x @ w[p + 'q_proj.weight'].T
    q = q.reshape(n, heads, -1).transpose(1, 0, 2)
    latent = x @ w[p + 'kv_a_proj_with_mqa.weight'].T
    key_rope = rotate(o, latent[:, kv:], angle)
    expanded = rms(latent[:, :kv], w[p + 'kv_a_layernorm.weight']) @ w[p + 'kv_b_proj.weight'].T
    expanded = expanded.reshape(n, heads, -1).transpose(1, 0, 2)
    scores = q[..., :nope] @ expanded[..., :nope].transpose(0, 2, 1)
    scores = scores + rotate(o, q[..., nope:], angle) @ key_rope.T
    scores = scores * extra / math.sqrt(nope + o['rope'])
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    out = softmax(scores) @ expanded[..., nope:]
    return out.transpose(1, 0, 2).reshape(n, -1) @ w[p + 'o_proj.weight'].T


def gqa_angles(o, n):
    """Rotation of position p, pair j; the factor on cosine and sine."""
    d = o['rotary'] or o['head']
    f = 10000.0 ** (-np.arange(0, d, 2) / d)
    if not o['yarn']:
        return np.outer(np.arange(n), f), 1.0
    factor, original, fast, slow = 4, 64, 32, 1
    low, high = (d * math.log(original / (r * 2 * math.pi)) / (2 * math.log(10000))
                 for r in (fast, slow))
    if o['model_type'] != 'gpt_oss':
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
    return np.outer(np.arange(n), f / factor * ramp + f * (1 - ramp)), mscale(factor, 1)


def gqa_rotate(x, angle, magnitude):
    half = angle.shape[-1]
    a, b, rest = np.split(x, [half, 2 * half], -1)
    c, s = magnitude * np.cos(angle), magnitude * np.sin(angle)
    return np.concatenate([a * c - b * s, b * c + a * s, rest], -1)


def project(w, name, x):
    y = x @ w[name + '.weight'].T
    return y + w[name + '.bias'] if name + '.bias' in w else y


def hidden_positions(o, p, n):
    """What a row must not see: later positions, and those before its window."""
    hidden, layer = np.triu(np.ones((n, n), bool), 1), int(p.split('.')[2])
    every = o['model_type'] not in ('qwen2_moe', 'gpt_oss')
    if o['window'] and (every or layer % 2 == 0):
        hidden |= np.tril(np.ones((n, n), bool), -o['window'])
    return hidden


def gqa(o, w, p, x):
    n, d = len(x), o['head']
    q, k, v = (project(w, p + name + '_proj', x) for name in 'qkv')
    whole = o['model_type'] in ('olmoe', 'minimax_m2')
    if whole and p + 'q_norm.weight' in w:
        q, k = rms(q, w[p + 'q_norm.weight']), rms(k, w[p + 'k_norm.weight'])
    q, k, v = (t.reshape(n, -1, d).transpose(1, 0, 2) for t in (q, k, v))
    if not whole and p + 'q_norm.weight' in w:
        q, k = rms(q, w[p + 'q_norm.weight']), rms(k, w[p + 'k_norm.weight'])
    angle = gqa_angles(o, n)
    q, k = gqa_rotate(q, *angle), gqa_rotate(k, *angle)
    k, v = (np.repeat(t, o['heads'] // o['kv_heads'], 0) for t in (k, v))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(d)
    scores[:, hidden_positions(o, p, n)] = -np.inf
    if p + 'sinks' in w:
        sinks = np.broadcast_to(w[p + 'sinks'][:, None, None], (len(scores), n, 1))
        scores = softmax(np.concatenate([scores, sinks], -1))[..., :-1]
    else:
        scores = softmax(scores)
    return project(w, p + 'o_proj', (scores @ v).transpose(1, 0, 2).reshape(n, -1))


def route(o, w, p, x, margins):
    """Expert ids and weights of one row."""
    logits = w[p + 'gate.weight'] @ x
    scores = softmax(logits) if o['scoring'] == 'softmax' else 1 / (1 + np.exp(-logits))
    keys = scores.copy()
    if o['topk_method'] == 'noaux_tc':
        bias = p + 'e_score_correction_bias'
        keys = keys + (w[bias] if bias in w else w[p + 'gate.e_score_correction_bias'])
    if o['topk_method'] != 'greedy' and o['groups'] > 1:
        per_group = keys.reshape(o['groups'], -1)
        best = np.sort(per_group, -1)[:, ::-1]
        value = best[:, 0] if o['topk_method'] == 'group_limited_greedy' else best[:, :2].sum(-1)
        order = np.argsort(-value, kind='stable')
        margins.append(value[order[o['groups_kept'] - 1]] - value[order[o['groups_kept']]])
        for g in order[o['groups_kept']:]:
            per_group[g] = -np.inf
    order = np.argsort(-keys, kind='stable')
    k = o['top_k']
    margins.append(keys[order[k - 1]] - keys[order[k]])
    weights = scores[order[:k]]
    if o['normalise']:
        weights = weights / (weights.sum() + 1e-20)
    if o['model_type'] != 'deepseek_v2' or not o['normalise']:
        weights = weights * o['scale']
    return order[:k], weights


def gpt_oss_moe(o, w, p, x, margins):
    out, k, e = np.zeros_like(x), o['top_k'], p + 'experts.'
    for t, row in enumerate(x):
        logits = w[p + 'router.weight'] @ row + w[p + 'router.bias']
        order = np.argsort(-logits, kind='stable')
        margins.append(logits[order[k - 1]] - logits[order[k]])
        for i, weight in zip(order[:k], softmax(logits[order[:k]])):
            y = row @ w[e + 'gate_up_proj'][i] + w[e + 'gate_up_proj_bias'][i]
            gate, up = np.minimum(y[::2], LIMIT), np.clip(y[1::2], -LIMIT, LIMIT)
            y = gate / (1 + np.exp(-ALPHA * gate)) * (up + 1)
            out[t] += weight * (y @ w[e + 'down_proj'][i] + w[e + 'down_proj_bias'][i])
    return out


def moe(o, w, p, x, margins):
    if o['model_type'] == 'gpt_oss':
        return gpt_oss_moe(o, w, p, x, margins)
    if not o['shared']:
        out = np.zeros_like(x)
    elif o['model_type'] == 'qwen2_moe':
        out = ffn(w, p + 'shared_expert.', x)
        out = out / (1 + np.exp(-(x @ w[p + 'shared_expert_gate.weight'].T)))
    else:
        out = ffn(w, p + 'shared_experts.', x)
    for t in range(len(x)):
        for e, weight in zip(*route(o, w, p, x[t], margins)):
            out[t] += weight * ffn(w, p + 'experts.%d.' % e, x[t])
    return out


def forward(o, w, margins):
    x = w['model.embed_tokens.weight'][TOKENS]
    for i in range(o['layers']):
        p = 'model.layers.%d.' % i
        x = x + (gqa if o['kv_heads'] else attention)(o, w, p + 'self_attn.', rms(x, w[p + 'input_layernorm.weight']))
        h = rms(x, w[p + 'post_attention_layernorm.weight'])
        m = p + block(o)
        x = x + (ffn(w, m, h) if i < o['dense_layers'] else moe(o, w, m, h, margins))
    head = w['model.embed_tokens.weight' if o['tied'] else 'lm_head.weight']
    return rms(x, w['model.norm.weight']) @ head.T


def main():
    cases = []
    for name, changes in VARIANTS.items():
        o, margins = dict(DEFAULTS, **changes), []
        logits = forward(o, make(o), margins)
        print('%-50s smallest router margin %.2g' % (name, min(margins)), file=sys.stderr)
        cases.append(dict(name=name, options=o, tokens=TOKENS, rows=ROWS,
                          logits=[[float('%.7g' % v) for v in logits[r]] for r in ROWS]))
    print('[' + ',\n'.join(json.dumps(c) for c in cases) + ']')


main()
