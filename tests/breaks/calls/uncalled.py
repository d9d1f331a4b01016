"""The reasons why no case calls an overload of aten that has its own kernel.

Patterns are as in `fnmatch`; the first match counts.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

_TEST = "torch's own tests of its dispatcher"
_MIOPEN = "only a build of torch for AMD can run it"
_QUANTIZED = "networks of quantized tensors, which torch has deprecated"
_TOKEN = "an assertion in a compiled graph, which has no values"
_CUDA = "CUDA alone has it, and the table is recorded on the CPU; {} on a GPU"
_INSIDE = "called by cases, but below the dispatch that is recorded: {}"

REASONS = {
    "aten::_foobar": _TEST,
    "aten::_test_*": _TEST,
    "aten::*miopen*": _MIOPEN,
    "aten::quantized_*": _QUANTIZED,
    "aten::_empty_*quantized": _QUANTIZED,
    "aten::_fused_moving_avg_obs_fq_helper": _QUANTIZED,
    "aten::_make_dep_token": _TOKEN,
    "aten::_functional_assert_async.msg": _TOKEN,
    "aten::_dyn_quant_*": "kernels of Arm's library, which no build for x86 has",
    "aten::_reshape_alias": _INSIDE.format("by reshape and flatten"),
    "aten::_nested_compute_contiguous_strides_offsets": _INSIDE.format("by each nested tensor"),
    "aten::_nested_view_from_buffer": _INSIDE.format("by each nested tensor"),
    "aten::_validate_compressed_sparse_indices": _INSIDE.format("by each compressed sparse tensor"),
    **dict.fromkeys(
        ("aten::_conv_depthwise2d*", "aten::conv_depthwise3d", "aten::cudnn_convolution*"),
        _CUDA.format("suites/libraries/test_own_convolutions.py calls it"),
    ),
    **dict.fromkeys(
        ("aten::_cslt_*", "aten::*semi_structured*", "aten::_scaled_grouped_mm*", "aten::*mm.dtype*"),
        _CUDA.format("suites/libraries/test_grouped_products.py calls it, if the GPU has it,"),
    ),
    **dict.fromkeys(
        ("aten::_cudnn_rnn*", "aten::_cudnn_init_dropout_state", "aten::_thnn_fused_*"),
        _CUDA.format("the networks and cells of suites/libraries/test_recurrent.py call it"),
    ),
    **dict.fromkeys(
        ("aten::batch_norm_*", "aten::_fused_rms_norm*"),
        _CUDA.format("suites/libraries/test_batch_norm_parts.py calls it"),
    ),
    **dict.fromkeys(
        ("aten::_convert_weight_to_int4pack", "aten::_weight_int4pack_mm"),
        _CUDA.format("suites/libraries/test_quantization.py calls it"),
    ),
    **dict.fromkeys(
        ("aten::_fused_dropout", "aten::_masked_scale"), _CUDA.format("suites/operators/test_rare.py calls it")
    ),
    **dict.fromkeys(
        ("aten::*flash_attention*quantized", "aten::_flash_attention_forward_no_dropout_inplace", "aten::_triton_*"),
        "CUDA alone has it, and no function of torch calls it",
    ),
    **dict.fromkeys(
        ("aten::*flash_attention*", "aten::*efficient_attention*", "aten::*cudnn_attention*", "aten::_fill_mem_eff_*"),
        _CUDA.format("suites/libraries/test_attention.py calls each back end by its name"),
    ),
    **dict.fromkeys(
        ("aten::cudnn_batch_norm*", "aten::cudnn_grid_sampler*", "aten::cudnn_affine_grid_*", "aten::*cudnn_ctc_loss*"),
        _CUDA.format("the operator that uses cuDNN for it is called by suites/operators"),
    ),
    "aten::_philox_*": "CUDA alone has it, and torch calls it from generated kernels only",
    "aten::_mixed_dtypes_linear": "CUDA alone has it, and no function of torch calls it",
    "aten::_batch_norm_with_update.out": "autograd calls the overload without out= only",
    "aten::_scaled_mm_v2.out": "torch.nn.functional.scaled_mm calls the overload without out= only",
}


def reason(overload: str) -> str:
    """Return why no case calls the overload; empty if there is no reason."""
    return next((text for pattern, text in REASONS.items() if fnmatchcase(overload, pattern)), "")
