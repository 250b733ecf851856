"""/api/v1/estimates, /models and /gpus: pure functions of the body, answered at once."""

from collections.abc import Callable
from typing import Any

from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.estimates import hybrids, patterns, representation, schema
from api.openapi import problems
from api.pure import PureView
from api.views import ApiView
from kernels.sizing.fields import MAX_FIELDS, MAX_LAYERS, MAX_WIDTH
from kernels.sizing.gpus import gpus
from kernels.sizing.inverse import MAX_BATCH, MAX_LEN
from kernels.sizing.questions import MAX_GPUS, Question, parse_question

TAGS = ["estimates"]
TITLES = {
    "kv-cache": "How many bytes a KV cache takes",
    "memory": "How much memory a model takes to run",
    "roofline": "How fast a model can at most be",
    "fit": "How long, how many, or on which GPU",
    "pattern": "What a sparse mask amounts to",
    "hybrid": "What a stack of attention and states keeps",
}
EXAMPLES = {**schema.EXAMPLES, "pattern": patterns.EXAMPLE, "hybrid": hybrids.EXAMPLE}
OWN_LIMITS = {"pattern": patterns.LIMITS, "hybrid": hybrids.LIMITS}
LIMITS = {
    "len": MAX_LEN,
    "batch": MAX_BATCH,
    "gpus": MAX_GPUS,
    "config_fields": MAX_FIELDS,
    "layers": MAX_LAYERS,
    "width": MAX_WIDTH,
}
ERRORS = problems(400, 401, 413, 415, 422, 429, 503)


class EstimatesView(ApiView):
    @extend_schema(
        operation_id="list_estimates",
        summary="What can be estimated",
        description="Each estimate with a body to begin with and the most that it takes.",
        tags=TAGS,
        responses={200: schema.Estimates, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        found = [
            {
                "name": name,
                "url": request.build_absolute_uri(reverse(f"api:estimate_{name.replace('-', '_')}")),
                "title": title,
                "example": EXAMPLES[name],
                "limits": OWN_LIMITS.get(name, LIMITS),
            }
            for name, title in TITLES.items()
        ]
        return Response({"estimates": found, "limits": LIMITS})


class EstimateView(PureView):
    def estimate(
        self, request: Request, kind: str, represent: Callable[[Question], dict[str, Any]]
    ) -> Response:
        return self.answer(request, lambda body: represent(parse_question(body, kind)))


class KvCacheView(EstimateView):
    @extend_schema(
        operation_id="estimate_kv_cache",
        summary=TITLES["kv-cache"],
        description=(
            "From the fields of a model's config, layer by layer, exact to the byte: grouped heads, latents, "
            "windows, states, encoders. `model` is a name of `GET /models`, `config` any Hugging Face "
            "config.json; which of its fields were understood, assumed and ignored is part of the answer."
        ),
        tags=TAGS,
        request={"application/json": schema.KvCacheRequest},
        examples=[
            OpenApiExample("Gemma 3 27B at 128K", schema.EXAMPLES["kv-cache"], request_only=True),
            OpenApiExample("A pasted config", schema.CONFIG_EXAMPLE, request_only=True),
        ],
        responses={200: schema.KvCacheEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return self.estimate(request, "kv-cache", representation.kv_cache_answer)


class MemoryView(EstimateView):
    @extend_schema(
        operation_id="estimate_memory",
        summary=TITLES["memory"],
        description=(
            "Weights (quantised ones with their scales), cache, states, activations of the widest layer, "
            "logits; on one GPU or shared by several, and whether it fits."
        ),
        tags=TAGS,
        request={"application/json": schema.MemoryRequest},
        examples=[OpenApiExample("Llama 3 8B on an RTX 4090", schema.EXAMPLES["memory"], request_only=True)],
        responses={200: schema.MemoryEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return self.estimate(request, "memory", representation.memory_answer)


class RooflineView(EstimateView):
    @extend_schema(
        operation_id="estimate_roofline",
        summary=TITLES["roofline"],
        description=(
            "The longer of what arithmetic and memory traffic take, for a prompt and for one more token of "
            "each sequence. A bound from data sheets, never a measurement."
        ),
        tags=TAGS,
        request={"application/json": schema.RooflineRequest},
        examples=[OpenApiExample("Llama 2 70B on two A100", schema.EXAMPLES["roofline"], request_only=True)],
        responses={200: schema.RooflineEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return self.estimate(request, "roofline", representation.roofline_answer)


class FitView(EstimateView):
    @extend_schema(
        operation_id="estimate_fit",
        summary=TITLES["fit"],
        description=(
            "The other way round: `find` the longest context (`len`), the largest `batch`, or the GPUs that "
            "hold the model (`gpu`). What is found fits, and one more does not."
        ),
        tags=TAGS,
        request={"application/json": schema.FitRequest},
        examples=[OpenApiExample("The longest context", schema.EXAMPLES["fit"], request_only=True)],
        responses={200: schema.FitEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return self.estimate(request, "fit", representation.fit_answer)


class PatternView(PureView):
    @extend_schema(
        operation_id="estimate_pattern",
        summary=TITLES["pattern"],
        description=(
            "Visible pairs, tiles and bytes read of each layer; how far a stack of layers hears, layer by "
            "layer and in closed form; beside attention to all. Nothing is run. Closed forms are for any "
            "length, masks for so many tokens and pairs as `GET /estimates` lists: what they leave out is "
            "null, and `notes` say why."
        ),
        tags=TAGS,
        request={"application/json": patterns.PatternRequest},
        examples=[OpenApiExample("Strides that double", patterns.EXAMPLE, request_only=True)],
        responses={200: patterns.PatternEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return self.answer(request, patterns.estimate)


class HybridView(PureView):
    @extend_schema(
        operation_id="estimate_hybrid",
        summary=TITLES["hybrid"],
        description=(
            "The cache of the layers that are attention beside the states of the others, and beside the "
            "same stack in attention alone: in bytes, in operations to a token, over lengths, and where they "
            "cross."
        ),
        tags=TAGS,
        request={"application/json": hybrids.HybridRequest},
        examples=[OpenApiExample("Jamba at 256K", hybrids.EXAMPLE, request_only=True)],
        responses={200: hybrids.HybridEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return self.answer(request, hybrids.estimate)


class ModelsView(ApiView):
    @extend_schema(
        operation_id="list_models",
        summary="The models that are known by name",
        description="Each with its config fields, where they are from, and what follows from them.",
        tags=TAGS,
        responses={200: schema.ModelList, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        return Response({"models": representation.model_rows()})


class GpusView(ApiView):
    @extend_schema(
        operation_id="list_gpus",
        summary="The GPUs that are known by name",
        description="Figures for dense matrices, each row with its source.",
        tags=TAGS,
        responses={200: schema.GpuList, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        return Response({"gpus": [representation.gpu_row(gpu) for gpu in gpus().values()]})
