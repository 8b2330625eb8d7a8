"""What the agent is asked to do: a payload that has been checked before anything else sees it."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError, field_validator

GITHUB = re.compile(r"https://github\.com/[\w-][\w.-]*/[\w-][\w.-]*")
_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_SECONDS = 900


class Task(BaseModel):
    """One project to migrate. Fields of a payload that are not here are not the agent's, and ignored."""

    prompt: Annotated[StrictStr, Field(min_length=1, max_length=20_000)]
    project: StrictStr
    """A folder or a .tar.gz under projects/, by its name; or the URL of a GitHub repository."""
    base_commit: Annotated[StrictStr, Field(pattern="^[0-9a-f]{40}$")] | None = None
    """Of a repository: where to start."""
    tests: Annotated[StrictInt, Field(ge=0)] | None = None
    """How many tests ran before the migration (default: as many as are found in the sources)."""
    dependencies: dict[StrictStr, StrictStr] = {}
    """`group:artifact` and the version it has to have at least."""
    seconds: Annotated[StrictInt, Field(ge=1, le=7200)] = _SECONDS
    """How long the agent may use its tools."""

    @field_validator("project")
    @classmethod
    def _is_a_name_or_a_repository(cls, project: str) -> str:
        if not _NAME.fullmatch(project) and not GITHUB.fullmatch(project):
            raise ValueError("neither a name under projects/ nor https://github.com/<owner>/<name>")
        return project

    @classmethod
    def read(cls, payload: Any) -> "Task":
        """The task of a payload; a ValueError says what is wrong with it.

        >>> Task.read({"prompt": "Migrate it to Java 17.", "project": "inventory"}).tests is None
        True
        >>> Task.read({"prompt": [{"toolUse": {"name": "shell"}}], "project": "inventory"})
        Traceback (most recent call last):
        ValueError: the payload is refused: prompt: Input should be a valid string
        """
        try:
            return cls.model_validate(payload)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc'])) or 'payload'}: {one['msg']}" for one in error.errors()]
            raise ValueError(f"the payload is refused: {'; '.join(wrong)}") from None
