#!/usr/bin/env python3
"""Logits and greedy continuations of tiny random models by the public reference implementation.

  python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.24.0
  venv/bin/python reference.py > reference.json
  venv/bin/python reference.py DIRECTORY      checks tiny_models.json, see check_tiny_models

Every case is a config.json as it is published for its family, and the list of tensors that the
reference itself writes for it: names and shapes are transformers' own.  Values follow from a
tensor's name (see write_model; reference_test.c does the same), so that a model need not be kept.
The reference reads each model from disk, with all the conversions it applies to published
checkpoints, and computes with eager attention in float32; a second run in float64 (its norms and
softmax stay float32) tells how much of a result is rounding.

Where the reference does not do what a family's own code does, the case avoids the difference:
  - DeepSeek-V2 with norm_topk_prob: the class ignores the key (released models say false).
  - Kimi-K2 has no class: its config runs as deepseek_v3, which it is.
"""
import copy
import json
import os
import re
import sys
import tempfile

sys.path.pop(0)                         # tokenizers.py beside this file is not the library
import numpy as np                      # noqa: E402
import torch                            # noqa: E402
import transformers                     # noqa: E402

PROMPT, GREEDY = 96, 32
ROWS = [2, 17, 48, PROMPT - 1]
VOCABULARY = 288

# An epsilon that is large enough for its place to show.
COMMON = dict(
    hidden_act='silu', hidden_size=64, vocab_size=VOCABULARY, num_hidden_layers=3,
    max_position_embeddings=256, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-3,
    rope_theta=10000.0, tie_word_embeddings=False, attention_dropout=0.0, bos_token_id=0,
    eos_token_id=1, num_experts_per_tok=3, torch_dtype='bfloat16')
MLA = dict(
    COMMON, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16,
    qk_rope_head_dim=16, v_head_dim=16, intermediate_size=96, moe_intermediate_size=32,
    n_routed_experts=16, n_shared_experts=1, first_k_dense_replace=1, moe_layer_freq=1,
    attention_bias=False)
V3 = dict(MLA, architectures=['DeepseekV3ForCausalLM'], model_type='deepseek_v3',
          scoring_func='sigmoid', topk_method='noaux_tc', norm_topk_prob=True, n_group=4,
          topk_group=2, num_experts_per_tok=4, routed_scaling_factor=2.5)
V2 = dict(MLA, architectures=['DeepseekV2ForCausalLM'], model_type='deepseek_v2',
          scoring_func='softmax', norm_topk_prob=False, n_shared_experts=2)


def yarn(**more):
    return dict({'type': 'yarn', 'factor': 8, 'original_max_position_embeddings': 32}, **more)


MIXTRAL = dict(
    COMMON, architectures=['MixtralForCausalLM'], model_type='mixtral', num_local_experts=8,
    num_experts_per_tok=2, intermediate_size=32, rope_theta=1000000.0, sliding_window=None,
    output_router_logits=False, router_aux_loss_coef=0.02)
QWEN2 = dict(
    COMMON, architectures=['Qwen2MoeForCausalLM'], model_type='qwen2_moe', num_experts=8,
    intermediate_size=96, moe_intermediate_size=32, shared_expert_intermediate_size=48,
    norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[1], sliding_window=16,
    use_sliding_window=False, max_window_layers=3, rope_theta=1000000.0,
    output_router_logits=False, router_aux_loss_coef=0.001)
GPT_OSS = dict(
    COMMON, architectures=['GptOssForCausalLM'], model_type='gpt_oss', num_local_experts=8,
    experts_per_token=3, intermediate_size=96, head_dim=16, attention_bias=True, swiglu_limit=7.0,
    rope_theta=150000, sliding_window=16, initial_context_length=32,
    layer_types=['sliding_attention', 'full_attention', 'sliding_attention'],
    rope_scaling={'rope_type': 'yarn', 'factor': 8.0, 'beta_fast': 32.0, 'beta_slow': 1.0,
                  'original_max_position_embeddings': 32, 'truncate': False})
GLM = dict(
    COMMON, architectures=['Glm4MoeForCausalLM'], model_type='glm4_moe', head_dim=16,
    partial_rotary_factor=0.5, rope_theta=1000000, rope_scaling=None,
    intermediate_size=96, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
    n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, attention_bias=True,
    num_nextn_predict_layers=1)

CASES = {
    'DeepSeek-V3': dict(V3, rope_scaling=yarn(
        beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)),
    'Kimi-K2': dict(V3, model_type='kimi_k2', n_group=1, topk_group=1, rope_theta=50000.0,
                    routed_scaling_factor=2.827, rope_scaling=yarn(
                        beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)),
    'DeepSeek-V2-Lite': dict(V2, topk_method='greedy', q_lora_rank=None, n_group=1, topk_group=1,
                             routed_scaling_factor=1.0, rope_scaling=yarn(
                                 beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707)),
    'DeepSeek-V2': dict(V2, topk_method='group_limited_greedy', n_group=4, topk_group=2,
                        routed_scaling_factor=16.0, rope_scaling=yarn(
                            beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707)),
    'OLMoE': dict(COMMON, architectures=['OlmoeForCausalLM'], model_type='olmoe',
                  num_key_value_heads=4, num_experts=8, norm_topk_prob=False,
                  intermediate_size=32, attention_bias=False, clip_qkv=None, rope_scaling=None,
                  pad_token_id=1, output_router_logits=False, router_aux_loss_coef=0.01),
    'Mixtral': MIXTRAL,
    'Mixtral, linear, windows': dict(MIXTRAL, sliding_window=16, rope_scaling={
        'type': 'linear', 'factor': 4.0}),
    'Mixtral, llama3': dict(MIXTRAL, rope_theta=10000.0, rope_scaling={
        'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
        'original_max_position_embeddings': 32}),
    'Mixtral, longrope': dict(MIXTRAL, head_dim=16, rope_scaling={
        'type': 'longrope', 'original_max_position_embeddings': 32,
        'short_factor': [1.0 + j / 8 for j in range(8)],
        'long_factor': [1.0 + j / 2 for j in range(8)]}),
    'Qwen2-MoE': QWEN2,
    'Qwen2-MoE, windows': dict(QWEN2, use_sliding_window=True, max_window_layers=2),
    'Qwen3-MoE': dict(COMMON, architectures=['Qwen3MoeForCausalLM'], model_type='qwen3_moe',
                      head_dim=32, num_experts=8, intermediate_size=96, moe_intermediate_size=32,
                      norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
                      attention_bias=False, sliding_window=None, use_sliding_window=False,
                      max_window_layers=3, rope_theta=1000000.0, output_router_logits=False,
                      router_aux_loss_coef=0.001),
    'Qwen3-MoE, YaRN, windows': dict(
        COMMON, architectures=['Qwen3MoeForCausalLM'], model_type='qwen3_moe', head_dim=32,
        num_experts=8, intermediate_size=96, moe_intermediate_size=32, norm_topk_prob=True,
        decoder_sparse_step=2, mlp_only_layers=[], attention_bias=False, sliding_window=16,
        use_sliding_window=True, max_window_layers=3, rope_scaling={
            'rope_type': 'yarn', 'factor': 8.0, 'original_max_position_embeddings': 32}),
    'gpt-oss, BF16': dict(GPT_OSS, swiglu_limit=1.5),      # which many values exceed
    'gpt-oss, MXFP4': dict(GPT_OSS, quantization_config={
        'quant_method': 'mxfp4', 'modules_to_not_convert': [
            'model.layers.*.self_attn', 'model.layers.*.mlp.router', 'model.embed_tokens',
            'lm_head']}),
    'GLM-4.5': dict(GLM, use_qk_norm=True, routed_scaling_factor=2.5),
    'GLM-4.5-Air': dict(GLM, use_qk_norm=False, routed_scaling_factor=1.0),
    'GLM-4.7-Flash': dict(MLA, architectures=['Glm4MoeLiteForCausalLM'],
                          model_type='glm4_moe_lite', v_head_dim=32, n_group=1, topk_group=1,
                          n_routed_experts=8, norm_topk_prob=True, routed_scaling_factor=1.8,
                          rope_theta=1000000, rope_scaling=None,
                          topk_method='noaux_tc', num_nextn_predict_layers=1,
                          mlp_layer_types=['dense', 'sparse', 'sparse']),
    'MiniMax-M2': dict(COMMON, architectures=['MiniMaxM2ForCausalLM'], model_type='minimax_m2',
                       head_dim=16, rotary_dim=8, intermediate_size=32, num_local_experts=8,
                       rope_theta=5000000, scoring_func='sigmoid', use_routing_bias=True,
                       use_qk_norm=True, qk_norm_type='per_layer', use_mtp=True,
                       num_mtp_modules=3),
    'Hy3': dict(COMMON, architectures=['HYV3ForCausalLM'], model_type='hy_v3', head_dim=16,
                intermediate_size=96, moe_intermediate_size=32, expert_hidden_dim=32,
                num_experts=8, num_shared_experts=1, first_k_dense_replace=1, rms_norm_eps=1e-5,
                router_scaling_factor=2.826, route_norm=True, moe_router_enable_expert_bias=True,
                moe_router_use_sigmoid=True, qk_norm=True, enable_moe_fp32_combine=False,
                rope_theta=11158840.0, num_nextn_predict_layers=1),
    'ERNIE-4.5': dict(COMMON, architectures=['Ernie4_5_MoeForCausalLM'], model_type='ernie4_5_moe',
                      intermediate_size=96, moe_intermediate_size=32, moe_num_experts=8, moe_k=3,
                      moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=-1,
                      moe_layer_interval=1, use_bias=False, rms_norm_eps=1e-5,
                      rope_theta=500000.0, tie_word_embeddings=True, num_nextn_predict_layers=1),
    'Hunyuan-A13B': dict(COMMON, architectures=['HunYuanMoEV1ForCausalLM'],
                         model_type='hunyuan_v1_moe', head_dim=16, intermediate_size=32,
                         moe_intermediate_size=[32] * 3, num_experts=8, moe_topk=[3] * 3,
                         num_shared_expert=[1] * 3, use_qk_norm=True, rms_norm_eps=1e-5,
                         tie_word_embeddings=True, norm_topk_prob=True, use_cla=False,
                         attention_bias=False, rope_scaling={
                             'type': 'dynamic', 'alpha': 1000.0, 'factor': 1.0, 'beta_fast': 32,
                             'beta_slow': 1, 'mscale': 1.0, 'mscale_all_dim': 1.0}),
    'Granite-MoE': dict(COMMON, architectures=['GraniteMoeForCausalLM'], model_type='granitemoe',
                        num_local_experts=8, intermediate_size=32, embedding_multiplier=12.0,
                        attention_multiplier=0.0625, residual_multiplier=0.22, logits_scaling=6.0,
                        attention_bias=False, rope_scaling=None),
    'Granite-MoE, shared': dict(COMMON, architectures=['GraniteMoeSharedForCausalLM'],
                                model_type='granitemoeshared', num_local_experts=8,
                                intermediate_size=32, shared_intermediate_size=48,
                                embedding_multiplier=12.0, attention_multiplier=0.3,
                                residual_multiplier=0.5, logits_scaling=8.0, attention_bias=False),
}
CLASSES = {'kimi_k2': 'deepseek_v3'}


def random_numbers(seed, name, count):
    """splitmix64 from the FNV-1a hash of a seed and a name, as float32 in [-1, 1)."""
    state = 0xcbf29ce484222325
    for byte in ('%d %s' % (seed, name)).encode():
        state = (state ^ byte) * 0x100000001b3 & (1 << 64) - 1
    z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) / 2.0 ** 52 - 1).astype(np.float32)


def tensor_data(seed, name, dtype, shape, center, width):
    x = np.float32(center) + np.float32(width) * random_numbers(seed, name, int(np.prod(shape)))
    if dtype == 'BF16':
        bits = x.view(np.uint32)
        return ((bits + np.uint32(0x7fff) + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return x.astype(np.uint8 if dtype == 'U8' else np.float32).tobytes()


def distribution(name, shape, tied):
    """Type, center and width of a tensor's values: unit variance in, unit variance out.  As a
    head, embeddings of that size would give each token back."""
    if name.endswith('_blocks'):
        return 'U8', 128, 127.5
    if name.endswith('_scales'):
        return 'U8', 124, 2
    if name.endswith('norm.weight'):
        return 'BF16', 1, 0.25
    if name.endswith('e_score_correction_bias'):
        return 'F32', -1, 0.25          # negative scores: an excluded group must be below all
    if name.endswith(('embed_tokens.weight', 'sinks')):
        return 'BF16', 0, 0.125 if tied else 1
    if name.endswith('bias'):
        return 'BF16', 0, 0.25
    fan_in = shape[-1 if name.endswith('.weight') else -2]
    return 'BF16', 0, float('%.9g' % np.sqrt(np.float32(3) / np.float32(fan_in)))


def published_tensors(config, quantised):
    """Names and shapes of the checkpoint that the reference writes."""
    model = transformers.AutoModelForCausalLM.from_config(as_class(config))
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        with open(os.path.join(directory, 'model.safetensors'), 'rb') as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), 'little')))
    header.pop('__metadata__', None)
    tensors = {}
    for name, info in header.items():
        shape = info['shape']
        if quantised and re.search(r'experts\.\w+_proj$', name):
            experts, columns, rows = shape
            tensors[name + '_blocks'] = [experts, rows, columns // 32, 16]
            tensors[name + '_scales'] = [experts, rows, columns // 32]
        else:
            tensors[name] = shape
    tied = config['tie_word_embeddings']
    return {name: (*distribution(name, shape, tied), shape)
            for name, shape in sorted(tensors.items())}


def as_class(config):
    config = {k: v for k, v in copy.deepcopy(config).items() if k != 'quantization_config'}
    model_type = config.pop('model_type')
    return transformers.AutoConfig.for_model(CLASSES.get(model_type, model_type), **config)


def saved_config(config):
    """What the reference makes of a published config when it saves it again."""
    saved = json.loads(as_class(config).to_json_string())
    if 'quantization_config' in config:
        saved['quantization_config'] = config['quantization_config']
    return saved


def compact(tensors):
    """Tensors that differ only in their numbers share an entry: layers.{0,1,2}."""
    groups = {}
    for name, about in tensors.items():
        key = re.sub(r'\.\d+\.', '.{}.', name), about[:3], tuple(about[3])
        groups.setdefault(key, []).append([int(n) for n in re.findall(r'\.(\d+)\.', name)])
    entries = []
    for (pattern, (dtype, center, width), shape), numbers in groups.items():
        sets = [sorted(set(values)) for values in zip(*numbers)]
        assert np.prod([len(values) for values in sets]) == len(numbers)
        name = pattern.format(*('{%s}' % ','.join(map(str, values)) for values in sets))
        entries.append(dict(name=name, type=dtype, shape=shape, center=center, width=width))
    return entries


def write_model(directory, config, seed, tensors):
    header, data, end = {}, [], 0
    for name, (dtype, center, width, shape) in tensors.items():
        data.append(tensor_data(seed, name, dtype, shape, center, width))
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[end, end + len(data[-1])])
        end += len(data[-1])
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(os.path.join(directory, 'model.safetensors'), 'wb') as file:
        file.write(len(text).to_bytes(8, 'little') + text + b''.join(data))
    with open(os.path.join(directory, 'config.json'), 'w') as file:
        json.dump(dict(config, model_type=CLASSES.get(config['model_type'], config['model_type'])),
                  file)


def load(directory, dtype):
    """The model, and the names that file and class do not share."""
    quantised = {}
    if 'quantization_config' in json.load(open(os.path.join(directory, 'config.json'))):
        quantised = dict(quantization_config=transformers.Mxfp4Config(dequantize=True))
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16 if quantised else dtype, attn_implementation='eager',
        experts_implementation='eager', output_loading_info=True, **quantised)
    return model.to(dtype).eval(), {key: names for key, names in report.items() if names}


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].to(torch.float64).numpy()


def continue_greedily(model, tokens):
    """Tokens, and how far each was ahead of the second best."""
    tokens, margin = list(tokens), np.inf
    for _ in range(GREEDY):
        last = logits_of(model, tokens)[-1]
        second, best = np.argsort(last)[-2:]
        margin = min(margin, last[best] - last[second])
        tokens.append(int(best))
    return tokens[-GREEDY:], margin


def try_seed(config, seed, tensors, prompt):
    """Logits, greedy tokens; how far float64 is from them; the narrowest choice of a token."""
    with tempfile.TemporaryDirectory() as directory:
        write_model(directory, config, seed, tensors)
        (model, strange), (precise, _) = (load(directory, dtype)
                                          for dtype in (torch.float32, torch.float64))
    assert not strange, strange
    single, double = logits_of(model, prompt), logits_of(precise, prompt)
    greedy, margin = continue_greedily(model, prompt)
    spread = np.max(np.linalg.norm(single - double, axis=-1) / np.linalg.norm(double, axis=-1))
    return single, greedy, spread, margin


def run_case(name, config, prompt):
    """The first seed whose routers and tokens are never near a tie, and not always the same."""
    tensors = published_tensors(config, 'quantization_config' in config)
    for seed in range(1, 100):
        logits, greedy, spread, margin = try_seed(config, seed, tensors, prompt)
        print('%-20s seed %d: float32 against float64 %.2g, smallest greedy margin %.2g'
              % (name, seed, spread, margin), file=sys.stderr)
        if spread < 1e-5 and margin > 5e-3 and len(set(greedy)) > 8:
            break
    else:
        raise ValueError('%s: no seed will do' % name)
    return dict(name=name, config=config, saved=saved_config(config), seed=seed,
                tensors=compact(tensors),
                logits=[[float('%.6g' % v) for v in logits[row]] for row in ROWS],
                top=[int(row.argmax()) for row in logits], greedy=greedy)


def check_tiny_models(directory):
    """tiny_models.json is our own arithmetic: what does the reference make of the same models?
    tiny_models_test has written them to the directory.  All agree within 5e-7 but for those that
    the classes cannot compute: V2 normalised, OLMoE with heads of another width than hidden
    / heads, MiniMax-M2 without its norms."""
    for case in json.load(open(os.path.join(os.path.dirname(__file__), 'tiny_models.json'))):
        path = os.path.join(directory, case['name'])
        with open(os.path.join(path, 'config.json')) as file:
            config = json.load(file)
        config['model_type'] = CLASSES.get(config['model_type'], config['model_type'])
        with open(os.path.join(path, 'config.json'), 'w') as file:
            json.dump(config, file)
        try:
            model, strange = load(path, torch.float64)
            result = logits_of(model, case['tokens'])[case['rows']]
        except RuntimeError as error:
            print('%-50s %s' % (case['name'], str(error).splitlines()[0]))
            continue
        print('%-50s %.2g %s' % (case['name'], np.linalg.norm(result - case['logits'])
                                 / np.linalg.norm(case['logits']), ' '.join(sorted(strange))))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    if len(sys.argv) > 1:
        check_tiny_models(sys.argv[1])
        return
    prompt = [6 + int(abs(x) * (VOCABULARY - 6)) for x in random_numbers(0, 'prompt', PROMPT)]
    cases = [run_case(name, config, prompt) for name, config in CASES.items()]
    print('{"reference": "transformers %s, torch %s",\n"prompt": %s,\n"rows": %s,\n"cases": ['
          % (transformers.__version__, torch.__version__, json.dumps(prompt), ROWS))
    print(',\n'.join(json.dumps(case, separators=(',', ':')) for case in cases))
    print(']}')


main()
