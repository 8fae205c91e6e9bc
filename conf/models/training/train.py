#!/usr/bin/env python3
"""Build the nginx-directives-moe model: a tiny DeepSeek-V3 style MoE with one MTP layer.

  train.py tokenizer                 facts.tsv -> nginx-directives-moe/tokenizer.json
  train.py train [--steps N | --minutes M] [--resume]
  train.py export [--ckpt F]         checkpoint -> nginx-directives-moe/model.safetensors + config
  train.py eval                      exact-match accuracy, MTP acceptance, expert load; eval.tsv
  train.py bench                     tokens per second of the training step

Needs only Python 3, numpy and torch (CPU; written for torch 1.13).  Two worker processes, one
thread each, share flat parameter / gradient buffers: each computes the gradient of its half of
the batch and runs AdamW on its half of the parameters.
"""
import argparse
import json
import math
import os
import random
import sys
import time

if 'avx512f' in open('/proc/cpuinfo').read():
    os.environ.setdefault('OPENBLAS_CORETYPE', 'SkylakeX')   # old OpenBLAS misdetects new Xeons
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
os.environ.setdefault('OMP_NUM_THREADS', '1')

import numpy as np                                            # noqa: E402
import torch                                                  # noqa: E402
import torch.multiprocessing as mp                            # noqa: E402
import torch.nn.functional as F                               # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bpe                                                    # noqa: E402
import data as D                                              # noqa: E402

MODEL_DIR = os.path.join(HERE, os.pardir, 'nginx-directives-moe')
FACTS = os.path.join(HERE, 'facts.tsv')
CKPT = os.environ.get('CKPT', 'ckpt.pt')

CFG = {
    'architectures': ['DeepseekV3ForCausalLM'],
    'attention_bias': False, 'attention_dropout': 0.0,
    'bos_token_id': D.BOS, 'eos_token_id': D.EOS, 'pad_token_id': D.PAD,
    'ep_size': 1, 'first_k_dense_replace': 1, 'hidden_act': 'silu', 'hidden_size': 256,
    'initializer_range': 0.02, 'intermediate_size': 512, 'kv_lora_rank': 64,
    'max_position_embeddings': 2048, 'model_type': 'deepseek_v3', 'moe_intermediate_size': 128,
    'moe_layer_freq': 1, 'n_group': 4, 'n_routed_experts': 16, 'n_shared_experts': 1,
    'norm_topk_prob': True, 'num_attention_heads': 4, 'num_experts_per_tok': 4,
    'num_hidden_layers': 4, 'num_key_value_heads': 4, 'num_nextn_predict_layers': 1,
    'pretraining_tp': 1, 'q_lora_rank': 128, 'qk_nope_head_dim': 32, 'qk_rope_head_dim': 16,
    'rms_norm_eps': 1e-06, 'rope_interleave': True, 'rope_scaling': None, 'rope_theta': 10000,
    'routed_scaling_factor': 2.5, 'scoring_func': 'sigmoid', 'tie_word_embeddings': False,
    'topk_group': 2, 'topk_method': 'noaux_tc', 'torch_dtype': 'bfloat16',
    'transformers_version': '4.51.0', 'use_cache': True, 'v_head_dim': 32, 'vocab_size': 2048,
}
H, NL, NH = CFG['hidden_size'], CFG['num_hidden_layers'], CFG['num_attention_heads']
NOPE, ROPE, VD = CFG['qk_nope_head_dim'], CFG['qk_rope_head_dim'], CFG['v_head_dim']
QR, KR, E, TOPK = CFG['q_lora_rank'], CFG['kv_lora_rank'], CFG['n_routed_experts'], CFG['num_experts_per_tok']
MF, FF, V, EPS = CFG['moe_intermediate_size'], CFG['intermediate_size'], CFG['vocab_size'], CFG['rms_norm_eps']
NG, TG, RSF = CFG['n_group'], CFG['topk_group'], CFG['routed_scaling_factor']
CH = 1 << 16
MOE_LAYERS = list(range(CFG['first_k_dense_replace'], NL + 1))           # the last one is the MTP layer

# ----------------------------------------------------------------------------- parameters


def specs():
    """(name, shape, init std or None for ones), in the order of the flat buffer."""
    out = [('model.embed_tokens.weight', (V, H), 0.05), ('lm_head.weight', (V, H), 0.02)]
    lin = lambda n, o, i, s=1.0: out.append((n, (o, i), s / math.sqrt(i)))
    one = lambda n, d: out.append((n, (d,), None))
    res = 1 / math.sqrt(2 * NL)
    for l in range(NL + 1):
        p = 'model.layers.%d.' % l
        if l == NL:
            one(p + 'enorm.weight', H)
            one(p + 'hnorm.weight', H)
            lin(p + 'eh_proj.weight', H, 2 * H)
            one(p + 'shared_head.norm.weight', H)
        one(p + 'input_layernorm.weight', H)
        one(p + 'post_attention_layernorm.weight', H)
        a = p + 'self_attn.'
        lin(a + 'q_a_proj.weight', QR, H)
        one(a + 'q_a_layernorm.weight', QR)
        lin(a + 'q_b_proj.weight', NH * (NOPE + ROPE), QR)
        lin(a + 'kv_a_proj_with_mqa.weight', KR + ROPE, H)
        one(a + 'kv_a_layernorm.weight', KR)
        lin(a + 'kv_b_proj.weight', NH * (NOPE + VD), KR)
        lin(a + 'o_proj.weight', H, NH * VD, res)
        m = p + 'mlp.'
        if l < CFG['first_k_dense_replace']:
            lin(m + 'gate_up', 2 * FF, H)
            lin(m + 'down_proj.weight', H, FF, res)
        else:
            lin(m + 'gate.weight', E, H)
            lin(m + 'shared_experts.gate_up', 2 * MF, H)
            lin(m + 'shared_experts.down_proj.weight', H, MF, res)
            out.append((m + 'experts.gate_up', (E, 2 * MF, H), 1 / math.sqrt(H)))
            out.append((m + 'experts.down', (E, H, MF), res / math.sqrt(MF)))
    one('model.norm.weight', H)
    return out


SPECS = specs()
NPARAM = sum(int(np.prod(s)) for _, s, _ in SPECS)


def views(flat):
    out, o = {}, 0
    for n, s, _ in SPECS:
        k = int(np.prod(s))
        out[n] = flat[o:o + k].view(s)
        o += k
    return out


def init_flat(flat, seed):
    g = torch.Generator().manual_seed(seed)
    for (n, s, std), v in zip(SPECS, views(flat).values()):
        if std is None:
            v.fill_(1.0)
        else:
            v.normal_(0, std, generator=g)


# ----------------------------------------------------------------------------- model

class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True).add_(EPS))
        xh = x * r
        ctx.save_for_backward(xh, r, w)
        return xh * w

    @staticmethod
    def backward(ctx, dy):
        xh, r, w = ctx.saved_tensors
        dw = (dy * xh).sum(0)
        dxh = dy * w
        return (dxh - xh * (dxh * xh).mean(-1, keepdim=True)).mul_(r), dw


rms = RMSNorm.apply


class SwiGLU(torch.autograd.Function):
    """x [T,H] -> down(silu(gate x) * up x); gate and up stacked in wgu."""
    @staticmethod
    def forward(ctx, x, wgu, wd):
        gu = x @ wgu.t()
        f = wd.shape[1]
        g, u = gu[:, :f], gu[:, f:]
        s = torch.sigmoid(g)
        h = (g * s).mul_(u)
        ctx.save_for_backward(x, wgu, wd, gu, s, h)
        return h @ wd.t()

    @staticmethod
    def backward(ctx, dy):
        x, wgu, wd, gu, s, h = ctx.saved_tensors
        dh = dy @ wd
        dgu = swiglu_bwd(gu, s, dh)
        return dgu @ wgu, dgu.t() @ x, dy.t() @ h


def swiglu_bwd(gu, s, dh):
    f = dh.shape[1]
    g, u = gu[:, :f], gu[:, f:]
    dgu = torch.empty_like(gu)
    gs = g * s
    torch.mul(dh, gs, out=dgu[:, f:])
    # d silu = s * (1 + g * (1 - s)) = s + gs - gs * s
    d = torch.addcmul(gs, gs, s, value=-1).add_(s)
    d.mul_(u)
    torch.mul(d, dh, out=dgu[:, :f])
    return dgu


class Experts(torch.autograd.Function):
    """Routed experts: tokens sorted by expert, one GEMM per expert and projection.

    Weight gradients are written straight into the flat gradient buffers ggu / gd."""
    @staticmethod
    def forward(ctx, x, w, idx, wgu, wd, ggu, gd):
        T = x.shape[0]
        flat = idx.reshape(-1)
        order = torch.argsort(flat, stable=True)
        cnt = torch.bincount(flat, minlength=E).tolist()
        tok = torch.div(order, TOPK, rounding_mode='floor')
        inv = torch.empty_like(order)
        inv[order] = torch.arange(T * TOPK)
        xs = x.index_select(0, tok)
        gu = torch.empty(T * TOPK, 2 * MF)
        o = 0
        for e, c in enumerate(cnt):
            if c:
                torch.mm(xs[o:o + c], wgu[e].t(), out=gu[o:o + c])
            o += c
        s = torch.sigmoid(gu[:, :MF])
        h = (gu[:, :MF] * s).mul_(gu[:, MF:])
        y = torch.empty(T * TOPK, H)
        o = 0
        for e, c in enumerate(cnt):
            if c:
                torch.mm(h[o:o + c], wd[e].t(), out=y[o:o + c])
            o += c
        yt = y.index_select(0, inv).view(T, TOPK, H)
        out = (yt * w.unsqueeze(-1)).sum(1)
        ctx.save_for_backward(x, w, wgu, wd, order, tok, inv, xs, gu, s, h, yt)
        ctx.cnt, ctx.bufs = cnt, (ggu, gd)
        return out

    @staticmethod
    def backward(ctx, dout):
        x, w, wgu, wd, order, tok, inv, xs, gu, s, h, yt = ctx.saved_tensors
        ggu, gd = ctx.bufs
        T = x.shape[0]
        dw = (yt * dout.unsqueeze(1)).sum(-1)
        dy = dout.index_select(0, tok).mul_(w.reshape(-1).index_select(0, order).unsqueeze(1))
        dh = torch.empty_like(h)
        o = 0
        for e, c in enumerate(ctx.cnt):
            if c:
                torch.mm(dy[o:o + c], wd[e], out=dh[o:o + c])
                torch.mm(dy[o:o + c].t(), h[o:o + c], out=gd[e])
            else:
                gd[e].zero_()
            o += c
        dgu = swiglu_bwd(gu, s, dh)
        dxs = torch.empty_like(xs)
        o = 0
        for e, c in enumerate(ctx.cnt):
            if c:
                torch.mm(dgu[o:o + c], wgu[e], out=dxs[o:o + c])
                torch.mm(dgu[o:o + c].t(), xs[o:o + c], out=ggu[e])
            else:
                ggu[e].zero_()
            o += c
        dx = dxs.index_select(0, inv).view(T, TOPK, H).sum(1)
        return dx, dw, None, None, None, None, None


def route(x, wg, bias):
    """DeepSeek-V3 router: sigmoid scores, bias for the selection only, group-limited top-k."""
    scores = torch.sigmoid(x @ wg.t())
    with torch.no_grad():
        c = scores + bias
        gs = c.view(-1, NG, E // NG).topk(2, -1)[0].sum(-1)
        gi = gs.topk(TG, -1)[1]
        mask = torch.zeros_like(gs).scatter_(1, gi, 1.0)
        mask = mask.unsqueeze(-1).expand(-1, NG, E // NG).reshape(-1, E)
        idx = c.masked_fill(mask == 0, 0.0).topk(TOPK, -1)[1]
    w = scores.gather(1, idx)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * RSF
    return idx, w


def rope_tables(n):
    inv = 1.0 / (CFG['rope_theta'] ** (torch.arange(0, ROPE, 2).float() / ROPE))
    a = torch.outer(torch.arange(n).float(), inv)
    return a.cos(), a.sin()


COS, SIN = rope_tables(CFG['max_position_embeddings'])


def rope(x, cos, sin):
    """x [..., ROPE] in the interleaved layout: pairs (2i, 2i+1).  The output stays interleaved;
    HF permutes q and k to halves first, which gives the same dot products."""
    x = x.unflatten(-1, (ROPE // 2, 2))
    a, b = x[..., 0], x[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def attention(P, p, x, pos, groups):
    T = x.shape[0]
    q = rms(x @ P[p + 'q_a_proj.weight'].t(), P[p + 'q_a_layernorm.weight']) @ P[p + 'q_b_proj.weight'].t()
    q = q.view(T, NH, NOPE + ROPE)
    kv = x @ P[p + 'kv_a_proj_with_mqa.weight'].t()
    kvb = (rms(kv[:, :KR], P[p + 'kv_a_layernorm.weight']) @ P[p + 'kv_b_proj.weight'].t()).view(T, NH, NOPE + VD)
    cos, sin = COS[pos], SIN[pos]
    qr = rope(q[..., NOPE:], cos.unsqueeze(1), sin.unsqueeze(1))
    kr = rope(kv[:, KR:], cos, sin).unsqueeze(1).expand(-1, NH, -1)
    q = torch.cat((q[..., :NOPE], qr), -1).mul((NOPE + ROPE) ** -0.5)
    k = torch.cat((kvb[..., :NOPE], kr), -1)
    v = kvb[..., NOPE:]
    outs = []
    for o, B, L, mask in groups:
        f = lambda t: t[o:o + B * L].view(B, L, NH, -1).transpose(1, 2)
        s = torch.matmul(f(q), f(k).transpose(2, 3)) + mask
        outs.append(torch.matmul(torch.softmax(s, -1), f(v)).transpose(1, 2).reshape(B * L, NH * VD))
    a = outs[0] if len(outs) == 1 else torch.cat(outs)
    return a @ P[p + 'o_proj.weight'].t()


def block(P, G, BIAS, l, x, pos, groups, stats):
    p = 'model.layers.%d.' % l
    x = x + attention(P, p + 'self_attn.', rms(x, P[p + 'input_layernorm.weight']), pos, groups)
    h = rms(x, P[p + 'post_attention_layernorm.weight'])
    m = p + 'mlp.'
    if l < CFG['first_k_dense_replace']:
        return x + SwiGLU.apply(h, P[m + 'gate_up'], P[m + 'down_proj.weight'])
    i = l - CFG['first_k_dense_replace']
    idx, w = route(h, P[m + 'gate.weight'], BIAS[i])
    if stats is not None:
        stats[i] += torch.bincount(idx.reshape(-1), minlength=E).float()
    y = Experts.apply(h, w, idx, P[m + 'experts.gate_up'].detach(), P[m + 'experts.down'].detach(),
                      G.get(m + 'experts.gate_up'), G.get(m + 'experts.down'))
    return x + y + SwiGLU.apply(h, P[m + 'shared_experts.gate_up'], P[m + 'shared_experts.down_proj.weight'])


def trunk(P, G, BIAS, batch, stats=None):
    x = F.embedding(batch['ids'], P['model.embed_tokens.weight'])
    for l in range(NL):
        x = block(P, G, BIAS, l, x, batch['pos'], batch['groups'], stats)
    return rms(x, P['model.norm.weight'])


def mtp_hidden(P, G, BIAS, batch, h, stats=None):
    """h: hidden states after the final norm.  Position i sees the embedding of token i+1."""
    p = 'model.layers.%d.' % NL
    e = F.embedding(batch['next'], P['model.embed_tokens.weight'])
    x = torch.cat((rms(e, P[p + 'enorm.weight']), rms(h, P[p + 'hnorm.weight'])), -1) @ P[p + 'eh_proj.weight'].t()
    x = block(P, G, BIAS, NL, x, batch['pos'], batch['groups'], stats)
    return rms(x, P[p + 'shared_head.norm.weight'])


# ----------------------------------------------------------------------------- batches

def chat_ids(tok, turns, system=None):
    """turns: [(question, answer or None)] -> ids, loss weight class (0 prompt, 1 answer)."""
    ids, w = [D.BOS], [0]
    if system is not None:
        s = [D.SYSTEM] + tok.encode(system)
        ids += s
        w += [0] * len(s)
    for q, a in turns:
        s = [D.USER] + tok.encode(q) + [D.ASSISTANT]
        ids += s
        w += [0] * len(s)
        if a is not None:
            s = tok.encode(a) + [D.EOS]
            ids += s
            w += [1] * len(s)
    return ids, w


class Stream:
    """Endless training batches for one worker.

    A batch is a flat token array made of `n_short` rows of `short` tokens (packed single-turn
    chats and plain text) and `n_long` rows of `long` tokens (multi-turn chats, long answers).
    Documents in a row do not see each other."""

    def __init__(self, tok, seed, n_short=12, short=128, n_long=1, long=512, p_prompt=0.12):
        self.tok, self.gen = tok, D.Gen(FACTS, seed, more=True)
        self.shape = (n_short, short, n_long, long)
        self.singles, self.pool, self.big = [], [], []
        self.p_prompt = p_prompt
        self.passes = 0.0

    def system(self):
        return self.gen.r.choice(D.SYSTEMS) if self.gen.r.random() < 0.12 else None

    def next_single(self):
        r = self.gen.r
        if r.random() < 0.06:
            ids = [D.BOS] + self.tok.encode(self.gen.completion()) + [D.EOS]
            return ids, [1] * len(ids)
        x = r.random()
        if x < 0.05:                          # what the model must not answer, and small talk
            _, q, a = self.gen.qa_unknown() if x < 0.025 else self.gen.qa_off() if x < 0.04 else self.gen.qa_chat()
            return chat_ids(self.tok, [(q, a)], self.system())
        if not self.singles:
            self.singles = self.gen.singles()
            self.per_pass = len(self.singles)
        _, q, a = self.singles.pop()
        self.passes += 1.0 / self.per_pass
        return chat_ids(self.tok, [(q, a)], self.system())

    def short_row(self, L):
        row, left = [], L
        while True:
            while len(self.pool) < 48:
                d = self.next_single()
                (self.big if len(d[0]) > L else self.pool).append(d)
            fit = [i for i, d in enumerate(self.pool) if len(d[0]) <= left]
            if not fit:
                return row
            # the first document is the oldest one, then the largest that fits
            i = 0 if not row and 0 in fit else max(fit, key=lambda j: len(self.pool[j][0]))
            d = self.pool.pop(i)
            row.append(d)
            left -= len(d[0])

    def long_row(self, L):
        r, row, left = self.gen.r, [], L
        while self.big and left >= len(self.big[-1][0]):
            row.append(self.big.pop())
            left -= len(row[-1][0])
        while left > 60:
            turns = []
            want = r.randint(2, 14 * L // 512)
            for _, q, a in self.gen.dialog(want):
                ids, _w = chat_ids(self.tok, turns + [(q, a)])
                if len(ids) > left - 20:
                    break
                turns.append((q, a))
            if not turns:
                break
            d = chat_ids(self.tok, turns, self.system())
            if len(d[0]) > left:
                d = chat_ids(self.tok, turns)
            row.append(d)
            left -= len(d[0])
        return row

    def batch(self):
        ns, S, nl, L = self.shape
        rows = [(S, self.short_row(S)) for _ in range(ns)] + [(L, self.long_row(L)) for _ in range(nl)]
        r = np.random.RandomState(self.gen.r.randrange(1 << 31))
        T = ns * S + nl * L
        ids = np.full(T, D.PAD, np.int64)
        doc = np.full(T, -1, np.int64)
        pos = np.zeros(T, np.int64)
        lw = np.zeros(T, np.int8)
        o, n = 0, 0
        for length, row in rows:
            j = o
            for d, w in row:
                k = len(d)
                ids[j:j + k] = d
                doc[j:j + k] = n
                pos[j:j + k] = np.arange(k)
                lw[j:j + k] = w
                j += k
                n += 1
            o += length
        same1 = np.zeros(T, bool)
        same1[:-1] = (doc[1:] == doc[:-1]) & (doc[:-1] >= 0)
        same2 = np.zeros(T, bool)
        same2[:-2] = (doc[2:] == doc[:-2]) & (doc[:-2] >= 0)
        nxt = np.zeros(T, np.int64)
        nxt[:-1] = ids[1:]
        # which positions are trained: all answers, a random part of the prompts
        tgt_ans = np.zeros(T, bool)
        tgt_ans[:-1] = lw[1:] == 1
        keep = same1 & (tgt_ans | (r.rand(T) < self.p_prompt))
        tgt2 = np.zeros(T, bool)
        tgt2[:-2] = lw[2:] == 1
        keep2 = same2 & (tgt2 | (r.rand(T) < self.p_prompt * 0.5))
        i1, i2 = np.nonzero(keep)[0], np.nonzero(keep2)[0]
        t = torch.from_numpy
        d = t(doc)
        groups, o = [], 0
        for B, W in ((ns, S), (nl, L)):
            if B:
                dd = d[o:o + B * W].view(B, W)
                m = (dd.unsqueeze(2) == dd.unsqueeze(1)) & torch.ones(W, W, dtype=torch.bool).tril()
                groups.append((o, B, W, torch.zeros(B, 1, W, W).masked_fill_(~m.unsqueeze(1), -1e9)))
                o += B * W
        return dict(ids=t(ids), pos=t(pos), next=t(nxt), groups=groups,
                    i1=t(i1), y1=t(ids[i1 + 1]), w1=t(np.where(tgt_ans[i1], 1.0, 0.5).astype(np.float32)),
                    i2=t(i2), y2=t(ids[i2 + 2]), real=int((doc >= 0).sum()))


def pad_batch(docs):
    """Evaluation batch: one document per row."""
    L = max(len(d) for d in docs)
    B = len(docs)
    ids = torch.full((B, L), D.PAD, dtype=torch.long)
    for i, d in enumerate(docs):
        ids[i, :len(d)] = torch.tensor(d)
    pos = torch.arange(L).repeat(B)
    nxt = torch.cat((ids[:, 1:], torch.full((B, 1), D.PAD)), 1)
    mask = torch.zeros(1, 1, L, L).masked_fill_(~torch.ones(L, L, dtype=torch.bool).tril(), -1e9)
    return dict(ids=ids.view(-1), pos=pos, next=nxt.reshape(-1), groups=[(0, B, L, mask)]), L


def losses(P, G, BIAS, b, stats, mtp_weight):
    h = trunk(P, G, BIAS, b, stats)
    head = P['lm_head.weight']
    ce = F.cross_entropy(h.index_select(0, b['i1']) @ head.t(), b['y1'], reduction='none')
    loss = (ce * b['w1']).sum() / b['w1'].sum()
    l2 = None
    if mtp_weight:
        h2 = mtp_hidden(P, G, BIAS, b, h, stats)
        l2 = F.cross_entropy(h2.index_select(0, b['i2']) @ head.t(), b['y2'])
        loss = loss + mtp_weight * l2
    return loss, ce, l2


# ----------------------------------------------------------------------------- evaluation

@torch.no_grad()
def exact_match(P, BIAS, tok, pairs, bs=48, collect=None):
    """Greedy decoding reproduces the expected answer iff the argmax is right at every answer
    position given the expected prefix, so one forward pass decides it.  Returns list of bool."""
    res = []
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]) + len(pairs[i][2]))
    ok = [False] * len(pairs)
    acc = [0, 0]
    for j in range(0, len(order), bs):
        part = order[j:j + bs]
        docs = [chat_ids(tok, [(pairs[i][1], pairs[i][2])]) for i in part]
        b, L = pad_batch([d for d, _ in docs])
        h = trunk(P, {}, BIAS, b, collect)
        logits = (h @ P['lm_head.weight'].t()).argmax(-1).view(len(part), L)
        h2 = mtp_hidden(P, {}, BIAS, b, h, collect)
        l2 = (h2 @ P['lm_head.weight'].t()).argmax(-1).view(len(part), L)
        for r, i in enumerate(part):
            ids, w = docs[r]
            good = True
            for t in range(len(ids) - 1):
                if w[t + 1]:
                    good &= int(logits[r, t]) == ids[t + 1]
            ok[i] = good
            if good:
                # drafts for answer tokens 2.. : made at t from h_t and token t+1
                for t in range(len(ids) - 2):
                    if w[t + 1] and w[t + 2]:
                        acc[0] += int(l2[r, t]) == ids[t + 2]
                        acc[1] += 1
    return ok, acc


def summary(pairs, ok):
    by = {}
    for (k, _, _), o in zip(pairs, ok):
        by.setdefault(k, []).append(o)
    return {k: sum(v) / len(v) for k, v in by.items()}, sum(ok) / len(ok)


# ----------------------------------------------------------------------------- training

def worker(rank, world, sh, args):
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + rank)
    tok = bpe.Tokenizer.load(os.path.join(MODEL_DIR, 'tokenizer.json'))
    flat, grads, bias, stats, scal, bar = sh
    P = views(flat)
    G = views(grads[rank])
    for n in P:
        if '.experts.' not in n:
            P[n].requires_grad_(True)
            P[n].grad = G[n]
    per = (NPARAM + world - 1) // world
    lo, hi = rank * per, min(NPARAM, (rank + 1) * per)
    mask = torch.cat([torch.full((int(np.prod(s)),), 0.0 if (len(s) == 1 or 'embed' in n) else 1.0)
                      for n, s, _ in SPECS])[lo:hi]      # weight decay on matrices only
    m, v = torch.zeros(hi - lo), torch.zeros(hi - lo)
    step = 0
    elapsed0 = 0.0
    if args.resume and os.path.exists(args.ckpt + '.%d' % rank):
        c = torch.load(args.ckpt + '.%d' % rank)
        m.copy_(c['m']); v.copy_(c['v']); step = c['step']; elapsed0 = c['elapsed']
    st = Stream(tok, args.seed * 1000 + 17 * rank + step * 31, n_short=args.n_short, long=args.long)
    dec = [(n, o, o2) for n, o, o2 in offsets() if '.experts.' not in n]
    seen = held = None
    if rank == 0:
        seen = D.make_eval(FACTS, 24, 901, False)
        held = D.make_eval(FACTS, 24, 902, True)
    t0 = time.time()
    ema = None
    ntok = 0
    tmp = torch.empty(hi - lo)
    b1, b2, eps = 0.9, 0.98, 1e-9
    log = open(args.log, 'a') if rank == 0 else None
    while True:
        elapsed = elapsed0 + time.time() - t0
        if rank == 0:
            scal[0] = max(step / args.steps if args.steps else 0, elapsed / (args.minutes * 60) if args.minutes else 0)
        bar.wait()
        prog = float(scal[0])
        if prog >= 1.0:
            break
        warm = min(1.0, (step + 1) / 100)
        lr = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, prog))))
        mtpw = args.mtp if (prog > args.mtp_full or step % 2 == 0) else 0.0
        for n, o, o2 in dec:
            grads[rank][o:o2].zero_()
        if not mtpw:
            q = 'model.layers.%d.mlp.experts.' % NL
            G[q + 'gate_up'].zero_(); G[q + 'down'].zero_()
        stats[rank].zero_()
        b = st.batch()
        loss, ce, l2 = losses(P, G, bias, b, stats[rank], mtpw)
        loss.backward()
        ntok += b['real']
        ans = b['w1'] == 1.0
        x = torch.tensor([ce.detach()[ans].mean(), l2.detach() if l2 is not None else float('nan')])
        ema = x if ema is None else torch.where(torch.isnan(x), ema, torch.where(torch.isnan(ema), x, 0.97 * ema + 0.03 * x))
        bar.wait()
        with torch.no_grad():
            acc = 0.0
            for a in range(lo, hi, CH):                      # chunks that fit the L2 cache
                z = min(hi, a + CH)
                g = tmp[a - lo:z - lo]
                if world == 1:
                    g.copy_(grads[0][a:z])
                else:
                    torch.add(grads[0][a:z], grads[1][a:z], out=g)
                    for k in range(2, world):
                        g.add_(grads[k][a:z])
                    g.div_(world)
                acc += float(g.dot(g))
            scal[4 + rank] = acc
            bar.wait()
            norm = math.sqrt(float(scal[4:4 + world].sum()))
            clip = min(1.0, args.clip / (norm + 1e-6))
            c1, c2 = 1 / (1 - b1 ** (step + 1)), 1 / math.sqrt(1 - b2 ** (step + 1))
            for a in range(lo, hi, CH):
                i, j = a - lo, min(hi, a + CH) - lo
                g, mm, vv, p = tmp[i:j], m[i:j], v[i:j], flat[lo + i:lo + j]
                g.mul_(clip)
                mm.mul_(b1).add_(g, alpha=1 - b1)
                vv.mul_(b2).addcmul_(g, g, value=1 - b2)
                p.addcmul_(p, mask[i:j], value=-lr * args.wd)
                p.addcdiv_(mm, torch.sqrt(vv).mul_(c2).add_(eps), value=-lr * c1)
            if rank == 0 and prog < 0.9:       # loss-free balancing: the bias only steers the selection
                cnt = sum(stats[k] for k in range(world))
                for i in range(len(MOE_LAYERS)):
                    if cnt[i].sum() > 0:
                        bias[i] += args.gamma * torch.sign(cnt[i].mean() - cnt[i])
                        bias[i] -= bias[i].min()      # keeps score+bias > 0: masking with 0 or -inf is the same
        step += 1
        bar.wait()
        if rank == 0 and (step % 20 == 0 or step <= 5):
            cnt = sum(stats[k] for k in range(world))
            imb = (cnt.max(1)[0] / cnt.mean(1).clamp(min=1)).tolist()
            dt = time.time() - t0
            print('step %d prog %.3f lr %.2e ans %.4f mtp %.4f gnorm %.2f tok/s %.0f passes %.1f imb %s t %.0f' % (
                step, prog, lr, ema[0], ema[1], norm, ntok * world / dt, st.passes * world, ' '.join('%.2f' % z for z in imb), elapsed),
                file=log, flush=True)
        if args.eval_every and step % args.eval_every == 0:
            if rank == 0:
                for name, pairs in (('seen', seen), ('held', held)):
                    ok, acc = exact_match(P, bias, tok, pairs)
                    by, tot = summary(pairs, ok)
                    print('EVAL step %d %s EM %.3f mtp %.3f %s' % (step, name, tot, acc[0] / max(1, acc[1]),
                          ' '.join('%s %.2f' % z for z in by.items())), file=log, flush=True)
            bar.wait()
        if args.save_every and step % args.save_every == 0:
            save(args, rank, flat, bias, m, v, step, elapsed0 + time.time() - t0)
    save(args, rank, flat, bias, m, v, step, elapsed)
    if rank == 0:
        print('DONE step %d tokens %d passes %.1f seconds %.0f' % (step, ntok * world, st.passes * world, elapsed), file=log, flush=True)


def save(args, rank, flat, bias, m, v, step, elapsed):
    torch.save(dict(m=m, v=v, step=step, elapsed=elapsed), args.ckpt + '.%d.tmp' % rank)
    os.replace(args.ckpt + '.%d.tmp' % rank, args.ckpt + '.%d' % rank)
    if rank == 0:
        torch.save(dict(flat=flat.detach().clone(), bias=bias.clone(), step=step), args.ckpt + '.tmp')
        os.replace(args.ckpt + '.tmp', args.ckpt)


def offsets():
    o = 0
    for n, s, _ in SPECS:
        k = int(np.prod(s))
        yield n, o, o + k
        o += k


def cmd_train(args):
    world = args.workers
    flat = torch.zeros(NPARAM).share_memory_()
    grads = torch.zeros(world, NPARAM).share_memory_()
    bias = torch.zeros(len(MOE_LAYERS), E).share_memory_()
    stats = torch.zeros(world, len(MOE_LAYERS), E).share_memory_()
    scal = torch.zeros(16, dtype=torch.float64).share_memory_()
    init_flat(flat, args.seed)
    if args.resume and os.path.exists(args.ckpt):
        c = torch.load(args.ckpt)
        flat.copy_(c['flat']); bias.copy_(c['bias'])
        if not os.path.exists(args.ckpt + '.0'):
            print('no optimizer state')
    ctx = mp.get_context('fork')
    bar = ctx.Barrier(world)
    ps = [ctx.Process(target=worker, args=(r, world, (flat, grads, bias, stats, scal, bar), args)) for r in range(world)]
    for p in ps:
        p.start()
    for p in ps:
        p.join()
    return max(p.exitcode for p in ps)


# ----------------------------------------------------------------------------- tokenizer, export

TEMPLATE = ("{{ bos_token }}{% for message in messages %}"
            "{% if message['role'] == 'system' %}{{ '<|system|>' + message['content'] }}"
            "{% elif message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
            "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + (message['content'] or '') + eos_token }}"
            "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def cmd_tokenizer(args):
    os.makedirs(MODEL_DIR, exist_ok=True)
    g = D.Gen(FACTS, 1)
    texts = []
    for _, q, a in g.singles():
        texts += [q, a]
    texts += [g.completion() for _ in range(1500)]
    texts += D.SYSTEMS
    vocab, merges = bpe.train_bpe(texts, V)
    assert len(vocab) == V, len(vocab)
    bpe.Tokenizer(vocab, merges).save(os.path.join(MODEL_DIR, 'tokenizer.json'))
    jd = lambda n, o: json.dump(o, open(os.path.join(MODEL_DIR, n), 'w'), indent=2)
    tokd = lambda i: dict(content=D.SPECIALS[i], lstrip=False, normalized=False, rstrip=False, single_word=False)
    jd('special_tokens_map.json', {'bos_token': tokd(D.BOS), 'eos_token': tokd(D.EOS), 'pad_token': tokd(D.PAD),
                                   'additional_special_tokens': [D.SPECIALS[i] for i in (D.USER, D.ASSISTANT, D.SYSTEM)]})
    jd('tokenizer_config.json', {
        'add_bos_token': True, 'add_eos_token': False,
        'added_tokens_decoder': {str(i): dict(tokd(i), special=True) for i in range(len(D.SPECIALS))},
        'additional_special_tokens': [D.SPECIALS[i] for i in (D.USER, D.ASSISTANT, D.SYSTEM)],
        'bos_token': D.SPECIALS[D.BOS], 'eos_token': D.SPECIALS[D.EOS], 'pad_token': D.SPECIALS[D.PAD], 'unk_token': None,
        'clean_up_tokenization_spaces': False, 'legacy': False, 'model_max_length': CFG['max_position_embeddings'],
        'tokenizer_class': 'PreTrainedTokenizerFast', 'chat_template': TEMPLATE})
    jd('generation_config.json', {'_from_model_config': False, 'bos_token_id': D.BOS, 'eos_token_id': D.EOS, 'pad_token_id': D.PAD,
                                  'do_sample': False, 'max_new_tokens': 512, 'transformers_version': CFG['transformers_version']})
    jd('config.json', CFG)


def bf16(t):
    """float32 tensor -> (uint16 numpy array, the rounded values as float32), round to nearest even."""
    r = t.detach().to(torch.bfloat16)
    return r.view(torch.int16).numpy().view(np.uint16), r.float()


def hf_tensors(P, bias):
    """Yield (HF name, tensor) in layer order."""
    yield 'model.embed_tokens.weight', P['model.embed_tokens.weight']
    for l in range(NL + 1):
        p = 'model.layers.%d.' % l
        if l == NL:
            yield p + 'embed_tokens.weight', P['model.embed_tokens.weight']
        for n, t in P.items():
            if not n.startswith(p):
                continue
            if n.endswith('gate_up') and '.experts.' not in n:
                f = t.shape[0] // 2
                yield n[:-7] + 'gate_proj.weight', t[:f]
                yield n[:-7] + 'up_proj.weight', t[f:]
            elif n.endswith('experts.gate_up'):
                for e in range(E):
                    q = n[:-7] + '%d.' % e
                    yield q + 'gate_proj.weight', t[e, :MF]
                    yield q + 'up_proj.weight', t[e, MF:]
                    yield q + 'down_proj.weight', P[n[:-7] + 'down'][e]
            elif n.endswith('experts.down'):
                pass
            else:
                yield n, t
                if n.endswith('mlp.gate.weight'):
                    yield n[:-6] + 'e_score_correction_bias', bias[l - CFG['first_k_dense_replace']]
        if l == NL:
            yield p + 'shared_head.head.weight', P['lm_head.weight']
    yield 'model.norm.weight', P['model.norm.weight']
    yield 'lm_head.weight', P['lm_head.weight']


def cmd_export(args):
    c = torch.load(args.ckpt)
    P = views(c['flat'])
    head, blobs, off = {'__metadata__': {'format': 'pt'}}, [], 0
    # F32 tensors first so that every tensor is aligned to its element size
    ts = sorted(hf_tensors(P, c['bias']), key=lambda x: 'correction_bias' not in x[0])
    for n, t in ts:
        if 'correction_bias' in n:
            raw, dt = t.detach().float().numpy().astype('<f4').tobytes(), 'F32'
        else:
            raw, dt = bf16(t.contiguous())[0].astype('<u2').tobytes(), 'BF16'
        head[n] = {'dtype': dt, 'shape': list(t.shape), 'data_offsets': [off, off + len(raw)]}
        blobs.append(raw)
        off += len(raw)
    js = json.dumps(head, separators=(',', ':')).encode()
    js += b' ' * (-len(js) % 8)
    path = os.path.join(MODEL_DIR, 'model.safetensors')
    with open(path, 'wb') as f:
        f.write(len(js).to_bytes(8, 'little'))
        f.write(js)
        for b in blobs:
            f.write(b)
    json.dump(CFG, open(os.path.join(MODEL_DIR, 'config.json'), 'w'), indent=2)
    print('wrote', path, os.path.getsize(path), 'bytes,', len(ts), 'tensors, step', c['step'])


def load_rounded(args):
    """The model as exported: BF16-rounded weights in float32."""
    c = torch.load(args.ckpt)
    flat = c['flat'] if args.fp32 else bf16(c['flat'])[1]
    return views(flat), c['bias'], bpe.Tokenizer.load(os.path.join(MODEL_DIR, 'tokenizer.json')), c['step']


@torch.no_grad()
def eval_dialogs(P, BIAS, tok, n, seed, held, turns=4):
    """Teacher-forced multi-turn accuracy: share of turns answered exactly, by position."""
    g = D.Gen(FACTS, seed)
    good, tot, by = 0, 0, {}
    for j in range(0, n, 16):
        dl = [g.dialog(turns, held) for _ in range(16)]
        docs = [chat_ids(tok, [(q, a) for _, q, a in d]) for d in dl]
        b, L = pad_batch([x for x, _ in docs])
        lg = (trunk(P, {}, BIAS, b) @ P['lm_head.weight'].t()).argmax(-1).view(len(docs), L)
        for r, (ids, w) in enumerate(docs):
            turn, ok = -1, True
            for t in range(len(ids)):
                if w[t]:
                    if not w[t - 1]:
                        turn, ok = turn + 1, True
                    ok &= int(lg[r, t - 1]) == ids[t]
                    if t + 1 == len(ids) or not w[t + 1]:
                        good += ok
                        tot += 1
                        by.setdefault(turn + 1, []).append(ok)
    return good / tot, {k: sum(v) / len(v) for k, v in by.items()}


@torch.no_grad()
def cmd_eval(args):
    torch.set_num_threads(1)
    P, bias, tok, step = load_rounded(args)
    report = {'step': step, 'weights': 'float32' if args.fp32 else 'bf16-rounded'}
    load = torch.zeros(len(MOE_LAYERS), E)
    rows = []
    for name, held, seed in (('seen', False, 7001), ('held', True, 7002), ('fresh', 'fresh', 7003)):
        pairs = D.make_eval(FACTS, args.n, seed, held)
        ok, acc = exact_match(P, bias, tok, pairs, collect=load)
        by, tot = summary(pairs, ok)
        report[name] = dict(em=tot, n=len(pairs), by_kind=by, mtp_acceptance=acc[0] / max(1, acc[1]), mtp_drafts=acc[1])
        print(name, 'EM %.4f of %d' % (tot, len(pairs)), {k: round(x, 3) for k, x in by.items()}, 'mtp %.4f' % (acc[0] / max(1, acc[1])))
        if args.show:
            for (k, q, a), o in zip(pairs, ok):
                if not o:
                    print('MISS [%s] %r' % (k, q))
        # a fixed subset for eval.tsv: evenly spaced pairs, so all kinds are in
        sub = [(name, k, q, a.replace('\n', '\\n'), int(o)) for (k, q, a), o in zip(pairs, ok)]
        rows += [sub[i * len(sub) // 170] for i in range(170)]
        em, turns = eval_dialogs(P, bias, tok, 96, seed + 10, held)
        report[name]['dialog_turn_em'] = em
        report[name]['dialog_by_turn'] = turns
        print(name, 'dialog turn EM %.4f' % em, turns)
    report['expert_load'] = {str(l): (load[i] / load[i].sum().clamp(min=1)).tolist()
                             for i, l in enumerate(MOE_LAYERS)}
    for l in MOE_LAYERS:
        x = report['expert_load'][str(l)]
        print('layer', l, 'load min %.4f max %.4f (even %.4f)' % (min(x), max(x), 1 / E))
    report['eval_tsv'] = dict(n=len(rows), em=sum(r[4] for r in rows) / len(rows))
    json.dump(report, open(args.report, 'w'), indent=1)
    with open(args.tsv, 'w', encoding='utf-8') as f:
        f.write('phrasing\tkind\tquestion\tanswer\tmodel_ok\n')
        for r in rows:
            f.write('\t'.join(map(str, r)) + '\n')


def cmd_bench(args):
    torch.set_num_threads(1)
    tok = bpe.Tokenizer.load(os.path.join(MODEL_DIR, 'tokenizer.json'))
    flat, grad = torch.zeros(NPARAM), torch.zeros(NPARAM)
    init_flat(flat, 1)
    P, G = views(flat), views(grad)
    for n in P:
        if '.experts.' not in n:
            P[n].requires_grad_(True)
            P[n].grad = G[n]
    bias = torch.zeros(len(MOE_LAYERS), E)
    st = Stream(tok, 1)
    st.batch()
    for mt in (0.1, 0.0):
        tb = tf = tw = 0
        n = 0
        for i in range(args.n):
            t = time.time()
            b = st.batch()
            t1 = time.time()
            loss, ce, _ = losses(P, G, bias, b, None, mt)
            t2 = time.time()
            loss.backward()
            t3 = time.time()
            tb += t1 - t; tf += t2 - t1; tw += t3 - t2
            n += b['ids'].numel()
        print('mtp', mt, 'tok/s/worker %.0f' % (n / (tb + tf + tw)), 'batch %.3f fwd %.3f bwd %.3f' % (tb / args.n, tf / args.n, tw / args.n),
              'real', b['real'], b['ids'].numel(), 'loss pos', len(b['i1']), float(ce.mean()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('cmd')
    ap.add_argument('--ckpt', default=CKPT)
    ap.add_argument('--steps', type=int, default=0)
    ap.add_argument('--minutes', type=float, default=0)
    ap.add_argument('--lr', type=float, default=2e-3)
    ap.add_argument('--wd', type=float, default=0.02)
    ap.add_argument('--clip', type=float, default=1.0)
    ap.add_argument('--mtp', type=float, default=0.15)
    ap.add_argument('--mtp-full', type=float, default=0.6, help='progress after which MTP is trained on every step')
    ap.add_argument('--n-short', type=int, default=12, help='rows of 128 tokens per worker and step')
    ap.add_argument('--long', type=int, default=512, help='length of the one long row (multi-turn chats)')
    ap.add_argument('--gamma', type=float, default=0.002)
    ap.add_argument('--seed', type=int, default=1)
    ap.add_argument('--workers', type=int, default=2)
    ap.add_argument('--resume', action='store_true')
    ap.add_argument('--log', default='train.log')
    ap.add_argument('--eval-every', type=int, default=400)
    ap.add_argument('--save-every', type=int, default=400)
    ap.add_argument('--n', type=int, default=100)
    ap.add_argument('--fp32', action='store_true')
    ap.add_argument('--show', action='store_true')
    ap.add_argument('--tsv', default=os.path.join(HERE, 'eval.tsv'))
    ap.add_argument('--report', default=os.path.join(HERE, 'report.json'))
    args = ap.parse_args()
    if args.cmd == 'train' and not (args.steps or args.minutes):
        args.steps = 6000
    sys.exit(globals()['cmd_' + args.cmd](args))


if __name__ == '__main__':
    main()
