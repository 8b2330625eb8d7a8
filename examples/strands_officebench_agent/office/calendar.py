"""Calendars: one .ics file for each user, as any calendar program reads it."""

from __future__ import annotations

from datetime import datetime, time, timezone
from pathlib import Path
from typing import Any

import icalendar
from pydantic import BaseModel, ConfigDict


class Event(BaseModel):
    """An event; its times are local, and without a zone unless the file gives one."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    start: datetime
    end: datetime


def read_events(path: Path) -> list[Event]:
    """The events of a calendar, in order of their start."""
    events = []
    for part in _load(path).walk("VEVENT"):
        start = _moment(part.decoded("DTSTART"))
        end = _moment(part.decoded("DTEND")) if "DTEND" in part else start
        events.append(Event(summary=str(part.get("SUMMARY", "")), start=start, end=end))
    return sorted(events, key=lambda event: comparable(event.start))


def write_events(path: Path, events: list[Event]) -> None:
    """A calendar with these events."""
    calendar = _empty()
    for event in events:
        calendar.add_component(_component(event))
    path.write_bytes(calendar.to_ical())


def add_event(path: Path, event: Event) -> None:
    """Add an event to a calendar; what else is in it stays as it is."""
    calendar = _load(path) if path.exists() else _empty()
    calendar.add_component(_component(event))
    path.write_bytes(calendar.to_ical())


def remove_events(path: Path, summary: str) -> int:
    """Remove the events of that name; gives how many there were."""
    calendar = _load(path)
    kept = [part for part in calendar.subcomponents if str(part.get("SUMMARY", "")) != summary]
    removed = len(calendar.subcomponents) - len(kept)
    calendar.subcomponents = kept
    path.write_bytes(calendar.to_ical())
    return removed


def overlapping(events: list[Event]) -> bool:
    """Whether any two of these events, sorted by their start, share time."""
    end = None
    for event in events:
        if end is not None and comparable(event.start) < end:
            return True
        end = max(comparable(event.end), end) if end else comparable(event.end)
    return False


def read_text(path: Path) -> str:
    """The file's lines, unfolded."""
    return path.read_bytes().decode(errors="replace").replace("\r\n", "\n").replace("\n ", "")


def comparable(moment: datetime) -> datetime:
    """Times without a zone count as UTC, so that any two can be compared."""
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.combine(value, time())


def _load(path: Path) -> icalendar.Calendar:
    return icalendar.Calendar.from_ical(path.read_bytes())


def _empty() -> icalendar.Calendar:
    calendar = icalendar.Calendar()
    calendar.add("PRODID", "-//office agent//")
    calendar.add("VERSION", "2.0")
    return calendar


def _component(event: Event) -> icalendar.Event:
    part = icalendar.Event()
    part.add("SUMMARY", event.summary)
    part.add("DTSTART", event.start)
    part.add("DTEND", event.end)
    part.add("DTSTAMP", comparable(event.start))  # the same file for the same calls
    return part
