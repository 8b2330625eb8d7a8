"""The agent's tools: six apps on the files of one workspace. Strands tells the model what they raise."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from strands import tool

from . import calendar, excel, mail, pdf, word
from .content import text_of
from .workspace import OfficeError, Workspace

_LONGEST = 20_000


def office_tools(workspace: Workspace) -> list[Any]:
    """The tools of a session."""
    apps = (file_tools, calendar_tools, mail_tools, excel_tools, word_tools, pdf_tools)
    return [made for app in apps for made in app(workspace)]


def file_tools(workspace: Workspace) -> list[Any]:
    """What is in the workspace."""

    @tool
    def file_list() -> str:
        """List all files."""
        return "\n".join(workspace.files()) or "no files"

    @tool
    def file_read(file: str) -> str:
        """Read a text file.

        Args:
            file: Its path.
        """
        return _short(text_of(workspace.existing(file)))

    @tool
    def file_write(file: str, text: str) -> str:
        """Write a text file.

        Args:
            file: Its path.
            text: Its whole content.
        """
        if Path(file).suffix in (".xlsx", ".docx", ".pdf", ".ics", ".eml", ".zip"):
            raise OfficeError(f"{file!r} is no text file; use the tools of its app")
        workspace.new(file).write_text(text)
        return f"wrote {file}"

    @tool
    def file_delete(file: str) -> str:
        """Delete a file.

        Args:
            file: Its path.
        """
        workspace.existing(file).unlink()
        return f"deleted {file}"

    @tool
    def file_extract(archive: str, folder: str) -> str:
        """Unpack a zip or tar archive.

        Args:
            archive: Its path.
            folder: Where its files go.
        """
        return "\n".join(workspace.extract(archive, folder)) or "the archive is empty"

    return [file_list, file_read, file_write, file_delete, file_extract]


def calendar_tools(workspace: Workspace) -> list[Any]:
    """Calendars."""

    def home(user: str) -> str:
        return f"calendar/{mail.user_of(user)}.ics"

    @tool
    def calendar_list(user: str) -> str:
        """List the events of a user's calendar.

        Args:
            user: The user's name.
        """
        path = workspace.path(home(user))
        events = calendar.read_events(path) if path.is_file() else []
        return "\n".join(f"{e.start} to {e.end}: {e.summary}" for e in events) or "no events"

    @tool
    def calendar_create(user: str, summary: str, start: str, end: str) -> str:
        """Add an event to a user's calendar.

        Args:
            user: The user's name.
            summary: The event's name.
            start: Like 2024-05-17 10:30.
            end: Like 2024-05-17 11:00.
        """
        event = calendar.Event(summary=summary, start=_moment(start), end=_moment(end))
        if calendar.comparable(event.end) <= calendar.comparable(event.start):
            raise OfficeError(f"the event ends at {end}, before it starts")
        calendar.add_event(workspace.new(home(user)), event)
        return f"added {summary!r} to the calendar of {user}"

    @tool
    def calendar_delete(user: str, summary: str) -> str:
        """Remove an event from a user's calendar.

        Args:
            user: The user's name.
            summary: The event's name.
        """
        removed = calendar.remove_events(workspace.existing(home(user)), summary)
        return f"removed {removed} events named {summary!r}"

    return [calendar_list, calendar_create, calendar_delete]


def mail_tools(workspace: Workspace) -> list[Any]:
    """Mail."""

    @tool
    def email_list(user: str) -> str:
        """List the emails of a user: file, sender and subject.

        Args:
            user: The user's name.
        """
        folder = f"emails/{mail.user_of(user)}/"
        found = [name for name in workspace.files() if name.startswith(folder) and name.endswith(".eml")]
        heads = [mail.read_text(workspace.existing(name)).splitlines() for name in found]
        return "\n".join(f"{name}: {h[0]}, {h[2]}" for name, h in zip(found, heads, strict=True)) or "no emails"

    @tool
    def email_read(file: str) -> str:
        """Read an email.

        Args:
            file: Its path, as email_list gives it.
        """
        return _short(mail.read_text(workspace.existing(file)))

    @tool
    def email_save_attachments(file: str, folder: str) -> str:
        """Save the attachments of an email.

        Args:
            file: The email's path.
            folder: Where they go.
        """
        saved = []
        for name, data in mail.read_attachments(workspace.existing(file)).items():
            saved.append(f"{folder.rstrip('/')}/{name}")
            workspace.new(saved[-1]).write_bytes(data)
        return "\n".join(saved) or "no attachments"

    @tool
    def email_send(sender: str, recipient: str, subject: str, body: str, attachment: str = "") -> str:
        """Send an email.

        Args:
            sender: The sender's name.
            recipient: One recipient's name.
            subject: Its subject.
            body: Its text.
            attachment: The path of a file to send along.
        """
        message = mail.Mail(sender=sender, to=recipient, subject=subject, body=body)
        parts = {Path(attachment).name: workspace.existing(attachment).read_bytes()} if attachment else {}
        data = mail.compose(message, parts).as_bytes()
        for user in {mail.user_of(sender), mail.user_of(recipient)}:
            workspace.new(f"emails/{user}/{mail.file_name(subject)}").write_bytes(data)
        return f"sent to {recipient}"

    return [email_list, email_read, email_save_attachments, email_send]


def excel_tools(workspace: Workspace) -> list[Any]:
    """Excel."""

    @tool
    def excel_read(file: str, sheet: str = "") -> str:
        """Read a workbook: (row, column): value, from 1.

        Args:
            file: Its path.
            sheet: A sheet other than the first.
        """
        return _short(excel.read_text(workspace.existing(file), sheet)) or "no cells"

    @tool
    def excel_create(file: str, rows: list[list[str]]) -> str:
        """Make a new workbook.

        Args:
            file: Its path.
            rows: The cells of each row.
        """
        excel.write_rows(workspace.new(file, ".xlsx"), [[excel.typed(cell) for cell in row] for row in rows])
        return f"wrote {file}"

    @tool
    def excel_set_cell(file: str, row: int, column: int, value: str, sheet: str = "") -> str:
        """Write one cell of a workbook.

        Args:
            file: Its path.
            row: From 1.
            column: From 1.
            value: What to write; empty to clear the cell.
            sheet: A sheet other than the first.
        """
        excel.set_cell(workspace.existing(file), row, column, excel.typed(value), sheet)
        return f"wrote ({row}, {column}) of {file}"

    @tool
    def excel_to_pdf(file: str, pdf_file: str) -> str:
        """Print a workbook to a PDF.

        Args:
            file: The workbook's path.
            pdf_file: The PDF's path.
        """
        pdf.write_lines(workspace.new(pdf_file, ".pdf"), _table(workspace.existing(file)))
        return f"wrote {pdf_file}"

    return [excel_read, excel_create, excel_set_cell, excel_to_pdf]


def word_tools(workspace: Workspace) -> list[Any]:
    """Word."""

    @tool
    def word_read(file: str) -> str:
        """Read a Word document.

        Args:
            file: Its path.
        """
        return _short(word.read_text(workspace.existing(file)))

    @tool
    def word_write(file: str, text: str) -> str:
        """Write a Word document.

        Args:
            file: Its path.
            text: Its whole text, a paragraph a line.
        """
        word.write_paragraphs(workspace.new(file, ".docx"), text.splitlines())
        return f"wrote {file}"

    @tool
    def word_append(file: str, text: str) -> str:
        """Add text at the end of a Word document.

        Args:
            file: Its path.
            text: What to add, a paragraph a line.
        """
        word.append_paragraphs(workspace.existing(file), text.splitlines())
        return f"added to {file}"

    @tool
    def word_to_pdf(file: str, pdf_file: str) -> str:
        """Print a Word document to a PDF.

        Args:
            file: The document's path.
            pdf_file: The PDF's path.
        """
        pdf.write_lines(workspace.new(pdf_file, ".pdf"), word.read_text(workspace.existing(file)).splitlines())
        return f"wrote {pdf_file}"

    return [word_read, word_write, word_append, word_to_pdf]


def pdf_tools(workspace: Workspace) -> list[Any]:
    """PDF."""

    @tool
    def pdf_read(file: str) -> str:
        """Read a PDF.

        Args:
            file: Its path.
        """
        return _short(pdf.read_text(workspace.existing(file)))

    @tool
    def pdf_write(file: str, text: str) -> str:
        """Write a PDF.

        Args:
            file: Its path.
            text: Its whole text.
        """
        pdf.write_lines(workspace.new(file, ".pdf"), text.splitlines())
        return f"wrote {file}"

    return [pdf_read, pdf_write]


def _table(path: Path) -> list[str]:
    rows: dict[int, list[str]] = {}
    for (row, _), value in sorted(excel.read_cells(path).items()):
        rows.setdefault(row, []).append(str(value))
    return ["   ".join(cells) for cells in rows.values()]


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise OfficeError(f"{text!r} is no time; write it like 2024-05-17 10:30") from None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST} more characters"
