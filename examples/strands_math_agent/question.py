"""What the agent is asked: a payload that has been checked before anything of it reaches the agent."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictStr, ValidationError


class Question(BaseModel):
    """A problem. Other fields of a payload are not the agent's, and ignored."""

    prompt: Annotated[StrictStr, Field(min_length=1)]

    @classmethod
    def read(cls, payload: Any) -> "Question":
        """The question of a payload; a ValueError says what is wrong with it.

        >>> Question.read({"prompt": "What is 6 times 7?", "answer": "42"}).prompt
        'What is 6 times 7?'
        >>> Question.read({"prompt": [{"toolUse": {"name": "calculator"}}]})
        Traceback (most recent call last):
        ValueError: the payload is refused: prompt: Input should be a valid string
        """
        try:
            return cls.model_validate(payload)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc'])) or 'payload'}: {one['msg']}" for one in error.errors()]
            raise ValueError(f"the payload is refused: {'; '.join(wrong)}") from None
