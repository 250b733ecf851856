"""A student's key: signed, so that it need not be kept anywhere. It opens one assignment for one student."""

import hashlib
from dataclasses import dataclass

from django.core import signing

_signer = signing.Signer(salt="api.grading.keys")


@dataclass(frozen=True)
class Student:
    """For whom a key was made."""

    assignment: str
    user_ref: str

    @property
    def key(self) -> str:
        """The text of the key, safe in a URL."""
        return _signer.sign_object([self.assignment, self.user_ref])

    @property
    def holder(self) -> str:
        """As the holder of quotas and of Idempotency-Keys, which are not as long as a name may be."""
        digest = hashlib.sha256(f"{self.assignment}:{self.user_ref}".encode()).hexdigest()
        return f"student:{digest[:32]}"


def read(text: str) -> Student | None:
    """Whose key it is; None: nobody's."""
    try:
        assignment, user_ref = _signer.unsign_object(text)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return Student(str(assignment), str(user_ref))
