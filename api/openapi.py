"""The OpenAPI document: hand-written JSON Schemas as components, and what every operation shares.

A serializer class made by `component` stands for a JSON Schema. It serializes nothing; the document
is the contract, and the code that reads and writes the JSON is elsewhere.
"""

import copy
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction, OpenApiParameter
from rest_framework import serializers

JsonSchema = dict[str, Any]


class Component(serializers.Serializer[Any]):
    """A named component of the document; `uses` are the components that its schema refers to."""

    json_schema: JsonSchema = {}  # noqa: RUF012 (set once by `component`)
    uses: tuple[type["Component"], ...] = ()


def component(name: str, schema: JsonSchema, *uses: type[Component]) -> type[Component]:
    return type(name, (Component,), {"json_schema": schema, "uses": uses, "__doc__": None})


def ref(used: type[Component]) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{used.__name__}"}


class ComponentExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    target_class = Component
    match_subclasses = True

    def get_name(self, auto_schema: AutoSchema, direction: Direction) -> str:
        return str(self.target.__name__ if isinstance(self.target, type) else type(self.target).__name__)

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> JsonSchema:
        for used in self.target.uses:
            auto_schema.resolve_serializer(used, direction)
        return copy.deepcopy(self.target.json_schema)  # what comes after changes it in place


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "api.auth.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> JsonSchema:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token from `make -s token NAME=x`. Without one, small runs are possible.",
        }


def described(kind: str, description: str, **more: Any) -> JsonSchema:
    return {"type": kind, "description": description, **more}


def closed(properties: dict[str, JsonSchema], *, required: tuple[str, ...] = (), **more: Any) -> JsonSchema:
    """An object that has these properties and no others."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False, **more}


FieldError = component(
    "FieldError",
    closed(
        {
            "pointer": described(
                "string", "RFC 6901 pointer into the request body; empty for the whole of it."
            ),
            "code": described("string", "Stable word for programs."),
            "detail": described("string", "What is wrong, with the value, the limit and the remedy."),
        },
        required=("pointer", "code", "detail"),
    ),
)
Problem = component(
    "Problem",
    {
        "type": "object",
        "description": "RFC 9457 problem details.",
        "properties": {
            "type": described("string", "Names the kind of problem; stable.", format="uri-reference"),
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "instance": described("string", "The path that was asked for.", format="uri-reference"),
            "errors": {"type": "array", "items": ref(FieldError)},
        },
        "required": ["type", "title", "status", "detail", "instance"],
        "additionalProperties": True,
    },
    FieldError,
)


def problems(*statuses: int) -> dict[tuple[int, str], type[Component]]:
    """The error answers of an operation, for `extend_schema(responses=…)`."""
    return {(status, "application/problem+json"): Problem for status in statuses}


PREFER = OpenApiParameter(
    "Prefer",
    str,
    OpenApiParameter.HEADER,
    description="`wait=N`: answer when the run has ended, at the latest after N ≤ 60 seconds (RFC 7240).",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description=(
        "Sent again with the same body, the request has its effect once and answers with the same resource, "
        "or the same figures (`Idempotent-Replayed: true`); with another body, or sent elsewhere, it is "
        "refused (422). 1 to 255 visible ASCII characters, kept for 24 hours."
    ),
)


class Schema(AutoSchema):
    """Describes an operation; of every POST, that it honours `Idempotency-Key`."""

    def get_override_parameters(self) -> list[Any]:
        return [IDEMPOTENCY_KEY] if self.method == "POST" else []
