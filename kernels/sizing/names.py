"""What configs call things: the names of each field that is read, and fields that decide no bytes."""

from __future__ import annotations

import re

# Where the language model of a config with several models is described.
NESTED_MODELS = ("text_config", "language_config", "llm_config", "thinker_config")
# What the outer part of such a config says for its language model too.
OUTER = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "architectures")

NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "attn_config.kv_n_heads",
    ),
    "head_dim": ("head_dim", "d_kv", "attention_head_dim", "kv_channels"),
    "v_head_dim": ("v_head_dim",),
    "dense_width": ("intermediate_size_mlp",),
    "width": (
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "ffn_hidden_size",
        "ffn_config.ffn_hidden_size",
    ),
    "vocab": ("vocab_size", "n_vocab", "padded_vocab_size"),
    "context": (
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "seq_length",
        "model_max_length",
    ),
    "window": ("sliding_window", "sliding_window_size", "window_size"),
    "pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "ffn_config.moe_num_experts"),
    "active": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "ffn_config.moe_top_k"),
    "expert_width": ("moe_intermediate_size",),
    "shared": ("n_shared_experts", "num_shared_experts"),
    "shared_width": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "layer_types": ("layer_types", "layers_block_type"),
    "state": ("mamba_d_state", "state_size", "ssm_state_size"),
    "kernel": ("mamba_d_conv", "conv_kernel"),
    "expand": ("mamba_expand", "expand"),
    "groups": ("mamba_n_groups", "n_groups", "mamba_ngroups"),
    "tied": ("tie_word_embeddings",),
    "mamba_heads": ("mamba_n_heads", "mamba_num_heads"),
    "mamba_head_dim": ("mamba_d_head", "mamba_head_dim", "mamba_headdim"),
    "dt_rank": ("mamba_dt_rank", "time_step_rank"),
    "conv_bias": ("mamba_conv_bias", "use_conv_bias"),
    "proj_bias": ("mamba_proj_bias", "use_bias"),
    "encoder_layers": ("encoder_layers", "num_layers"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
    "encoder_heads": ("encoder_attention_heads", "num_heads"),
    "decoder_heads": ("decoder_attention_heads", "num_heads"),
    "encoder_width": ("encoder_ffn_dim", "d_ff"),
    "decoder_width": ("decoder_ffn_dim", "d_ff"),
}
# Fields that many configs carry and that decide no bytes: ignored, and not worth a look.
HARMLESS = frozenset(
    re.findall(
        r"\w+",
        """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _name_or_path
    activation activation_function alibi alibi_bias_max apply_residual_connection_post_layernorm
    architectures attention_dropout attention_multiplier attention_probs_dropout_prob
    attention_softmax_in_fp32 attn_impl attn_implementation attn_logit_softcapping attn_pdrop
    attn_uses_sequence_id audio_config audio_token_id auto_map aux_loss_alpha bad_words_ids
    begin_suppress_tokens bias_dropout_fusion block_size boi_token_index bos_token_id
    cache_implementation calc_logits_for_entire_prompt chunk_size chunk_size_feed_forward
    classifier_dropout classifier_pooling clip_qkv cls_token_id cross_attention_hidden_size
    decoder_start_token_id dense_act_fn diversity_penalty do_sample dropout dropout_rate dtype
    early_stopping emb_pdrop embd_pdrop embedding_fraction embedding_multiplier
    encoder_no_repeat_ngram_size eoi_token_index eos_token_id ep_size experts_per_token
    exponential_decay_length_penalty fc_type final_logit_softcapping finetuning_task forced_bos_token_id
    forced_eos_token_id gelu_approximate gradient_checkpointing hidden_act hidden_activation
    hidden_dropout hidden_dropout_prob id2label image_token_id image_token_index init_config init_device
    init_method_std init_std initial_context_length initializer_factor initializer_range is_decoder
    label2id language layer_norm_eps layer_norm_epsilon learned_pos_emb length_penalty logit_scale
    logits_scaling low_precision_layernorm mamba_chunk_size mamba_hidden_act mamba_inner_layernorms
    mask_token_id masked_softmax_fusion max_length max_source_positions max_target_positions
    max_window_layers min_length mlp_hidden_act mm_tokens_per_image model_type mup_base_width n_group
    n_special no_bias no_repeat_ngram_size no_rope_layers norm_eps norm_epsilon norm_topk_prob norm_type
    num_beam_groups num_beams num_logits_to_keep num_nextn_predict_layers num_return_sequences
    offset_alibi original_max_position_embeddings output_attentions output_hidden_states output_past
    output_router_logits output_scores pad_token_id partial_rotary_factor position_embedding_type
    predict_special_tokens prefix prefix_lm pretraining_tp problem_type pruned_heads quantization
    query_pre_attn_scalar relative_attention_max_distance remove_invalid_values reorder_and_upcast_attn
    repetition_penalty rescale_prenorm_residual resid_pdrop residual_in_fp32 residual_multiplier
    return_dict return_dict_in_generate rms_norm_eps rope_interleave rope_local_base_freq
    rope_parameters rope_scaling rope_theta rope_type rotary_dim rotary_emb_base rotary_pct
    routed_scaling_factor router_aux_loss_coef router_jitter_noise scale_attn_by_inverse_layer_idx
    scale_attn_weights scale_embedding scoring_func sep_token_id seq_aux seq_length skip_bias_add
    skip_bias_add_qkv slow_but_exact softmax_scale summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens swiglu_alpha swiglu_limit
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder time_step_floor
    time_step_init_scheme time_step_limit time_step_max time_step_min time_step_scale tokenizer_class
    top_k top_p topk_group topk_method torch_compile torch_dtype torchscript transformers_version
    typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_conv_bias
    use_mamba_kernels use_mrope use_return_dict verbose video_token_id vision_config vision_end_token_id
    vision_start_token_id vision_token_id
    """,
    )
)
