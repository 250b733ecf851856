"""/api/v1/estimates, /models and /gpus: pure functions of the body, answered at once."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import parsers
from api.estimates import representation, schema
from api.openapi import problems
from api.views import ApiView
from kernels.sizing.gpus import gpus
from kernels.sizing.questions import Question, parse_question

TAGS = ["estimates"]
ERRORS = problems(400, 401, 413, 415, 422)


def answer(request: Request, kind: str, represent: Callable[[Question], dict[str, Any]]) -> Response:
    """The estimate that the body asks for."""
    return Response(represent(parse_question(parsers.json_body(request), kind)))


class KvCacheView(ApiView):
    @extend_schema(
        operation_id="estimate_kv_cache",
        summary="How many bytes a KV cache takes",
        description=(
            "From the fields of a model's config, layer by layer, exact to the byte: grouped heads, latents, "
            "windows, states, encoders. `model` is a name of `GET /models`, `config` any Hugging Face "
            "config.json; which of its fields were understood, assumed and ignored is part of the answer."
        ),
        tags=TAGS,
        request={"application/json": schema.KvCacheRequest},
        examples=[
            OpenApiExample("Gemma 3 27B at 128K", schema.NAMED_EXAMPLE, request_only=True),
            OpenApiExample("A pasted config", schema.CONFIG_EXAMPLE, request_only=True),
        ],
        responses={200: schema.KvCacheEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return answer(request, "kv-cache", representation.kv_cache_answer)


class MemoryView(ApiView):
    @extend_schema(
        operation_id="estimate_memory",
        summary="How much memory a model takes to run",
        description=(
            "Weights (quantised ones with their scales), cache, states, activations of the widest layer, "
            "logits; on one GPU or shared by several, and whether it fits."
        ),
        tags=TAGS,
        request={"application/json": schema.MemoryRequest},
        examples=[OpenApiExample("Llama 3 8B on an RTX 4090", schema.MEMORY_EXAMPLE, request_only=True)],
        responses={200: schema.MemoryEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return answer(request, "memory", representation.memory_answer)


class RooflineView(ApiView):
    @extend_schema(
        operation_id="estimate_roofline",
        summary="How fast a model can at most be",
        description=(
            "The longer of what arithmetic and memory traffic take, for a prompt and for one more token of "
            "each sequence. A bound from data sheets, never a measurement."
        ),
        tags=TAGS,
        request={"application/json": schema.RooflineRequest},
        examples=[OpenApiExample("Llama 2 70B on two A100", schema.ROOFLINE_EXAMPLE, request_only=True)],
        responses={200: schema.RooflineEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return answer(request, "roofline", representation.roofline_answer)


class FitView(ApiView):
    @extend_schema(
        operation_id="estimate_fit",
        summary="How long, how many, or on which GPU",
        description=(
            "The other way round: `find` the longest context (`len`), the largest `batch`, or the GPUs that "
            "hold the model (`gpu`). What is found fits, and one more does not."
        ),
        tags=TAGS,
        request={"application/json": schema.FitRequest},
        examples=[OpenApiExample("The longest context", schema.FIT_EXAMPLE, request_only=True)],
        responses={200: schema.FitEstimate, **ERRORS},
    )
    def post(self, request: Request) -> Response:
        return answer(request, "fit", representation.fit_answer)


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
