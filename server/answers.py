"""JSON as this server writes it: NaN and infinities are null, which JSON can say."""

from typing import Any

from fastapi.responses import Response
from pydantic_core import to_json


class Json(Response):
    """A JSON answer. Written by pydantic's serializer: ten times the speed of the standard library's on long lists."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of ``content``."""
        return to_json(content, inf_nan_mode="null", fallback=str)
