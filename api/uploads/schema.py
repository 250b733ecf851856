"""Uploads, as the OpenAPI document describes them."""

from api.openapi import closed, component, described

UploadRequest = component(
    "UploadRequest",
    closed(
        {"file": described("string", "`.npy`, `.npz` or `.safetensors`", format="binary")}, required=("file",)
    ),
)
UploadedArray = component(
    "UploadedArray",
    closed(
        {
            "name": described("string", "Its name in the file; of a lone `.npy` the file's stem."),
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "dtype": {"type": "string"},
        },
        required=("name", "shape", "dtype"),
    ),
)
Upload = component(
    "Upload",
    closed(
        {
            "id": {"type": "string"},
            "created_at": {"type": "string", "format": "date-time"},
            "expires_at": {"type": "string", "format": "date-time"},
            "size": described("integer", "Bytes."),
            "arrays": {"type": "array", "items": {"$ref": "#/components/schemas/UploadedArray"}},
        },
        required=("id", "created_at", "expires_at", "size", "arrays"),
    ),
    UploadedArray,
)
