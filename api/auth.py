"""`Authorization: Bearer <token>`. No header is fine (anonymous); a wrong one never is."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from api.models import ApiToken


class BearerAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[ApiToken, ApiToken] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header.strip():
            return None
        scheme, _, text = header.strip().partition(" ")
        if scheme.lower() != "bearer":
            raise AuthenticationFailed(f"The scheme {scheme!r} is not known here; send `Bearer <token>`.")
        token = ApiToken.verify(text.strip())
        if token is None:
            raise AuthenticationFailed(
                "The token is unknown, expired or revoked; send a valid one, or none to go on anonymously."
            )
        token.touch()
        return token, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="Attention Lab"'
