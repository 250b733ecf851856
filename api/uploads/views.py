"""POST /api/v1/uploads: a file of arrays, for the inputs of later runs."""

from typing import Any, cast

from django.core.files.uploadedfile import UploadedFile
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency
from api.errors import Problem
from api.models import Upload
from api.openapi import problems
from api.uploads import schema, store
from api.views import ApiView
from kernels.spec import FieldProblem


class UploadsView(ApiView):
    parser_classes = (MultiPartParser,)

    @extend_schema(
        operation_id="upload",
        summary="Send a file of arrays",
        description=(
            "A `.npy`, `.npz` or `.safetensors` file, never pickled. Its arrays can then be named in the "
            'inputs of runs: `{"upload": "<id>", "name": "q"}`.'
        ),
        tags=["uploads"],
        request={"multipart/form-data": schema.UploadRequest},
        responses={201: schema.Upload, **problems(400, 401, 409, 413, 415, 422, 429, 503)},
    )
    def post(self, request: Request) -> Response:
        file = self._file(request)
        key = self.idempotency_key(store.fingerprint(file))
        upload, replayed = self._once(file, key)
        document = {
            "id": upload.id,
            "created_at": upload.created_at,
            "expires_at": upload.expires_at,
            "size": upload.size,
            "arrays": upload.arrays,
        }
        return Response(document, status=201, headers=idempotency.REPLAYED if replayed else None)

    def _file(self, request: Request) -> "UploadedFile[Any]":
        files = request.FILES.getlist("file") if request.META.get("CONTENT_LENGTH") else []
        others = sorted(set(request.data) - {"file"}) if files else []
        if len(files) == 1 and not others:
            return cast("UploadedFile[Any]", files[0])
        found = f"the unknown part {others[0][:60]!r}" if others else f"{len(files)} of them"
        detail = f"send one multipart/form-data part named `file`, with a file name; there is {found}"
        code = "unknown-field" if others else "required"
        raise Problem(400, detail, errors=[FieldProblem("/file", code, detail, 400)])

    def _once(self, file: "UploadedFile[Any]", key: idempotency.Key | None) -> tuple[Upload, bool]:
        if key is None:
            return store.save(file, self.caller), False
        for _ in range(3):  # whoever was first may fail and give the key back while we look
            upload_id = idempotency.find(key)
            if upload_id is not None:
                if earlier := store.find(upload_id, self.caller):
                    return earlier, True
                idempotency.forget(key)
            try:
                idempotency.reserve(key)
            except idempotency.Taken:
                continue
            try:
                upload = store.save(file, self.caller)
            except BaseException:
                idempotency.forget(key)
                raise
            idempotency.complete(key, upload.id)
            return upload, False
        raise Problem(409, "Other requests use this Idempotency-Key just now.", kind="idempotency-in-flight")
