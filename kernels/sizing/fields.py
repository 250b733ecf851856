"""Read a Hugging Face ``config.json`` that anybody may have pasted: by any of the names that a field goes by,
keeping account of what was understood, what was assumed in its place, and what was ignored.

A reader never raises. What is missing or wrong is noted and a harmless value returned, so that one answer
names all of it. Fields of ``text_config`` and its like are looked for first, those of nested objects by
dotted names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.spec.problems import MALFORMED, Problems, join, nearest, one_of, printable, show
from kernels.spec.reader import is_integer

MAX_FIELDS = 1_000
MAX_WIDTH = 2**20  # of a vector; the largest models have a sixtieth of it
MAX_VOCAB = 2**24
MAX_LAYERS = 1_024
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
    "shared_width": ("shared_expert_intermediate_size", "shared_intermediate_size"),
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
    "decoder_layers": ("decoder_layers", "num_decoder_layers"),
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
    _name_or_path activation activation_function alibi alibi_bias_max
    apply_residual_connection_post_layernorm architectures attention_dropout attention_multiplier
    attention_probs_dropout_prob attention_softmax_in_fp32 attn_impl attn_logit_softcapping attn_pdrop
    attn_uses_sequence_id audio_config auto_map aux_loss_alpha begin_suppress_tokens bias_dropout_fusion
    block_size boi_token_index bos_token_id calc_logits_for_entire_prompt chunk_size
    chunk_size_feed_forward classifier_dropout clip_qkv cls_token_id decoder_start_token_id dense_act_fn
    dropout dropout_rate dtype emb_pdrop embd_pdrop embedding_fraction embedding_multiplier
    eoi_token_index eos_token_id ep_size experts_per_token fc_type final_logit_softcapping
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_act hidden_activation
    hidden_dropout hidden_dropout_prob id2label image_token_id image_token_index init_config init_device
    init_method_std init_std initial_context_length initializer_factor initializer_range is_decoder
    label2id layer_norm_eps layer_norm_epsilon learned_pos_emb logit_scale logits_scaling
    low_precision_layernorm mamba_chunk_size mamba_inner_layernorms mask_token_id masked_softmax_fusion
    max_window_layers mm_tokens_per_image n_group n_special no_bias no_rope_layers norm_eps norm_epsilon
    norm_topk_prob norm_type num_logits_to_keep num_nextn_predict_layers offset_alibi
    original_max_position_embeddings output_attentions output_hidden_states output_past
    output_router_logits pad_token_id parallel_attn partial_rotary_factor position_embedding_type
    predict_special_tokens prefix_lm pretraining_tp problem_type qk_layernorm qk_ln quantization
    query_pre_attn_scalar relative_attention_max_distance reorder_and_upcast_attn
    rescale_prenorm_residual resid_pdrop residual_in_fp32 residual_multiplier return_dict rms_norm_eps
    rope_interleave rope_local_base_freq rope_parameters rope_scaling rope_theta rotary_dim
    rotary_emb_base rotary_pct routed_scaling_factor router_aux_loss_coef router_jitter_noise
    scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func sep_token_id seq_aux seq_length
    skip_bias_add skip_bias_add_qkv slow_but_exact softmax_scale summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    swiglu_alpha swiglu_limit task_specific_params time_step_floor time_step_init_scheme time_step_limit
    time_step_max time_step_min time_step_scale tokenizer_class topk_group topk_method torch_compile
    torch_dtype transformers_version unk_token_id use_cache use_mamba_kernels use_qk_norm verbose
    vision_config
    """,
    )
)


@dataclass(frozen=True)
class Assumption:
    """A value that the config does not say, and why this one."""

    field: str
    value: int | bool | str
    why: str


@dataclass
class ConfigFields:
    """The fields of one config at ``pointer``; ``defaults`` are those of its model type, by our names."""

    config: Mapping[str, Any]
    pointer: str
    problems: Problems
    defaults: Mapping[str, int | bool | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the language model where the config describes several."""
        self.understood: dict[str, None] = {}
        self.assumed: list[Assumption] = []
        self.missing: Problems = Problems()  # what only the weights need
        self.notes: list[str] = []
        inside = next((name for name in NESTED_MODELS if isinstance(self.config.get(name), dict)), None)
        self.inside = inside
        self.scope: Mapping[str, Any] = self.config[inside] if inside else self.config

    # --- Looking ---------------------------------------------------------------------------------

    def names(self, name: str) -> tuple[str, ...]:
        """What configs call the field that we call ``name``; itself if we have no name of our own."""
        return NAMES.get(name, (name,))

    def at(self, field_name: str) -> str:
        """Pointer of a field, dotted or not."""
        outer = self.inside and field_name in OUTER and field_name not in self.scope
        inside = () if outer or not self.inside else (self.inside,)
        return join(self.pointer, *inside, *field_name.split("."))

    def has(self, name: str) -> bool:
        """Whether a field has a value: its own, or that of its model type."""
        found, value = self.find(name)
        return value is not None or (not found and name in self.defaults)

    def says_null(self, name: str) -> bool:
        """Whether a field is there and null, which is more than not being there."""
        found, value = self.find(name)
        return bool(found) and value is None

    def find(self, name: str) -> tuple[str, Any]:
        """The field under whichever of its names it has, and its value; ``("", None)`` if it is not there.

        Two names with two values contradict each other, which is noted.
        """
        there = [(known, value) for known in self.names(name) for value in self._values(known)]
        for known, _ in there:
            self.understood[known] = None
        said = [(known, value) for known, value in there if value is not None]
        if not said:
            return there[0] if there else ("", None)
        first, value = said[0]
        for other, contrary in said[1:]:
            if contrary != value and not self.problems.under(self.at(other)):
                detail = (
                    f"{other} says {show(contrary)} and {first} says {show(value)}, but both name one "
                    "thing: leave one of them out"
                )
                self.problems.add(self.at(other), "contradiction", detail)
        return first, value

    def _values(self, field_name: str) -> list[Any]:
        *parents, last = field_name.split(".")
        inner: Any = self.scope
        for parent in parents:
            inner = inner.get(parent) if isinstance(inner, dict) else None
        if isinstance(inner, Mapping) and last in inner:
            return [inner[last]]
        return [self.config[last]] if self.inside and last in OUTER and last in self.config else []

    # --- Reading ---------------------------------------------------------------------------------

    def integer(
        self, name: str, *, low: int = 1, high: int = MAX_WIDTH, default: int | None = None, why: str = ""
    ) -> int:
        """A whole number that must be there, unless there is a default for it; ``low`` where it is wrong."""
        value = self.integer_or_none(name, low=low, high=high)
        if value is not None:
            return value
        if self.problems.under(self.at(self.find(name)[0] or self.names(name)[0])):
            return low
        if default is not None:
            self.assume(name, default, why)
            return default
        self.require(name, self.problems)
        return low

    def integer_or_none(self, name: str, *, low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """A whole number within its limits; that of the model type where there is none; else None."""
        found, value = self.find(name)
        if not found and name in self.defaults:
            known = self.defaults[name]
            self.assume(name, known, "what this model type has unless its config says otherwise")
            return int(known)
        if value is None or self.problems.under(self.at(found)):
            return None
        if not is_integer(value):
            detail = f"{found} must be an integer, not {show(value)}"
            self.problems.add(self.at(found), "wrong-type", detail, MALFORMED)
            return None
        if not low <= value <= high:
            detail = f"{found} must be between {low:,} and {high:,}, not {show(value)}"
            self.problems.add(self.at(found), "out-of-range", detail)
            return None
        return int(value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false; null is the default."""
        found, value = self.find(name)
        if not found:
            return bool(self.defaults.get(name, default))
        if value is None or isinstance(value, bool):
            return default if value is None else value
        detail = f"{found} must be true or false, not {show(value)}"
        self.problems.add(self.at(found), "wrong-type", detail, MALFORMED)
        return default

    def word(self, name: str, default: str = "") -> str:
        """A string; anything else is noted."""
        found, value = self.find(name)
        if value is None:
            return str(self.defaults.get(name, default)) if not found else default
        if isinstance(value, str):
            return value
        detail = f"{found} must be a string, not {show(value)}"
        self.problems.add(self.at(found), "wrong-type", detail, MALFORMED)
        return default

    def entries(self, name: str, count: int | None = None) -> list[Any] | None:
        """A list with ``count`` entries, one to a layer; None if it is not there."""
        found, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list):
            detail = f"{found} must be a list, not {show(value)}"
            self.problems.add(self.at(found), "wrong-type", detail, MALFORMED)
            return None
        if count is not None and len(value) != count:
            layers = self.find("layers")[0] or self.names("layers")[0]
            detail = (
                f"{found} has {len(value)} entries and {layers} says {count} layers: one of the two is wrong"
            )
            self.problems.add(self.at(found), "contradiction", detail)
            return None
        return value

    def indices(self, name: str) -> frozenset[int] | None:
        """A list of whole numbers as a set; None if it is not there."""
        listed = self.entries(name)
        if listed is None:
            return None
        for index, item in enumerate(listed):
            if not is_integer(item):
                detail = f"an entry of {name} must be an integer, not {show(item)}"
                self.problems.add(join(self.at(self.find(name)[0]), index), "wrong-type", detail, MALFORMED)
                return None
        return frozenset(listed)

    # --- Account ---------------------------------------------------------------------------------

    def assume(self, name: str, value: int | bool | str, why: str) -> None:
        """Say that a value which is not in the config was taken to be this one."""
        entry = Assumption(self.names(name)[0], value, why)
        if entry not in self.assumed:
            self.assumed.append(entry)

    def require(self, name: str, problems: Problems) -> None:
        """Say that a field is missing that cannot be done without."""
        first, *others = self.names(name)
        also = f" (or {one_of(others)})" if others else ""
        shown = [str(key) for key in self.scope][:MAX_FIELDS]
        near = nearest(first, shown) if shown else ""
        hint = f"; {near}" if near.startswith("did you mean") else ""
        detail = f"the config does not say {first}{also}, which cannot be guessed: add it{hint}"
        problems.add(self.at(first), "required", detail)

    def contradiction(self, name: str, detail: str) -> None:
        """Say that a field cannot be true together with another."""
        found = self.find(name)[0] or self.names(name)[0]
        if not self.problems.under(self.at(found)):
            self.problems.add(self.at(found), "contradiction", detail)

    def ignored(self) -> list[str]:
        """Every field that had no part in the answer, nested ones dotted."""
        parents = {name.split(".")[0] for name in self.understood if "." in name}
        found = []
        for key, value in self.scope.items():
            if key in parents and isinstance(value, Mapping):
                found += [f"{key}.{inner}" for inner in value if f"{key}.{inner}" not in self.understood]
            elif key not in self.understood:
                found.append(key)
        if self.inside:
            found = [f"{self.inside}.{name}" for name in found]
            outer = (key for key in self.config if key != self.inside and key not in self.understood)
            found += [key for key in outer if key not in found]
        return [printable(name[:200]) for name in found]

    def unknown(self, ignored: Sequence[str]) -> list[str]:
        """Those of the ignored fields that might matter for all we know."""
        ours = {known for names in NAMES.values() for known in names}
        return [name for name in ignored if not {name, name.rsplit(".", 1)[-1]} & (HARMLESS | ours)]
