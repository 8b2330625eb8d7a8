"""Mail: `emails/<user>/*.eml`, one message a file. Sending puts a copy into the sender's and the recipient's folder."""

from __future__ import annotations

import email
import email.policy
import mimetypes
import re
from email.message import EmailMessage
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

_DOMAIN = "example.com"


class Mail(BaseModel):
    """A message; in a row, its sender is `from`."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)
    sender: str = Field(validation_alias="from")
    to: str
    subject: str
    body: str


def user_of(address: str) -> str:
    """The user whose folder an address means.

    >>> user_of("Bob@example.com"), user_of("Bob")
    ('Bob', 'Bob')
    """
    return address.strip().partition("@")[0]


def file_name(subject: str) -> str:
    """The file a message with that subject goes to.

    >>> file_name("Re: offer 1/2")
    'Re_ offer 1_2.eml'
    """
    return re.sub(r"[^\w .()&-]", "_", subject).strip(" .")[:100] + ".eml"


def compose(mail: Mail, attachments: dict[str, bytes] | None = None) -> EmailMessage:
    """The message to store."""
    message = EmailMessage()
    message["From"], message["To"] = (f"{user_of(name)}@{_DOMAIN}" for name in (mail.sender, mail.to))
    message["Subject"] = " ".join(mail.subject.split())
    message.set_content(mail.body)
    for name, data in (attachments or {}).items():
        kind, _, subkind = (mimetypes.guess_type(name)[0] or "application/octet-stream").partition("/")
        message.add_attachment(data, maintype=kind, subtype=subkind, filename=name)
    return message


def write_mail(path: Path, mail: Mail) -> None:
    """Store a message."""
    path.write_bytes(compose(mail).as_bytes())


def read_text(path: Path) -> str:
    """Headers, text, and the names of attachments."""
    message = _load(path)
    lines = [f"{name}: {message.get(name, '')}" for name in ("From", "To", "Subject")]
    lines += [f"Attachment: {part.get_filename()}" for part in message.iter_attachments()]
    text = message.get_body(("plain", "html"))
    return "\n".join([*lines, "", text.get_content() if text else ""])


def read_attachments(path: Path) -> dict[str, bytes]:
    """The attachments of a message by name."""
    return {
        part.get_filename() or "attachment": bytes(part.get_payload(decode=True) or b"")
        for part in _load(path).iter_attachments()
    }


def _load(path: Path) -> EmailMessage:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message
