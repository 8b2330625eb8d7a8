"""The kinds of built-in tasks: four in one app, four across two, two across three."""

from __future__ import annotations

from datetime import date
from typing import Any

from .tasks import Call, Desk, Kind, Task

_WARES = ["chairs", "desks", "lamps", "screens", "phones", "cables", "folders", "pens", "printers", "shelves"]
_TOPICS = ["budget review", "product launch", "hiring plan", "office move", "customer survey", "safety audit"]


def meeting(desk: Desk) -> Task:
    """Put a meeting into a calendar."""
    day, topic, hour = desk.day(), desk.dice.choice(_TOPICS), desk.dice.randint(9, 16)
    calendar = f"calendar/{desk.user}.ics"
    return Task(
        ("calendar",),
        f"Add '{topic}' to my calendar on {day} from {hour}:00 to {hour}:30.",
        {},
        [_contain(calendar, f"DTSTART:{_stamp(day, hour)}", f"DTEND:{_stamp(day, hour, 30)}", topic)],
        [_event(desk, topic, day, hour, f"{hour}:30")],
        [_event(desk, topic, day, hour, f"{hour + 1}:00")],
        desk,
    )


def answer(desk: Desk) -> Task:
    """Find something in the mail and tell it to somebody."""
    boss, other = desk.people(2)
    room, topic = desk.dice.randint(100, 499), desk.dice.choice(_TOPICS)
    mails = {
        f"emails/{desk.user}/{topic}.eml": _mail(boss, desk.user, topic, f"The {topic} will be in room {room}."),
        f"emails/{desk.user}/lunch.eml": _mail(other, desk.user, "lunch", f"Lunch is in room {room + 1} today."),
    }
    said = f"The {topic} is in room {room}."
    return Task(
        ("email",),
        f"Look up in my mail which room the {topic} is in, and tell {other} by email.",
        mails,
        [{"check": "contain", "mail_of": other, "keywords": [str(room), f"From: {desk.user}"]}],
        [("email_list", {"user": desk.user}), ("email_read", {"file": next(iter(mails))}), _send(desk, other, said)],
        [_send(desk, boss, said)],
        desk,
    )


def correction(desk: Desk) -> Task:
    """Change one cell and nothing else."""
    table, people = _table(desk, "name", "hours")
    who, hours = desk.dice.randrange(len(people)), desk.dice.randint(100, 199)
    cells = [_cell(row, 2, table[row - 1][1]) for row in range(2, len(table) + 1) if row != who + 2]
    return Task(
        ("excel",),
        f"In data/hours.xlsx, set the hours of {people[who]} to {hours}.",
        {"data/hours.xlsx": table},
        [
            {"check": "cells", "file": "data/hours.xlsx", "cells": [_cell(who + 2, 2, hours), *cells]},
            {"check": "diff_contain", "file": "data/hours.xlsx", "keywords": [people[who], str(hours)]},
        ],
        [("excel_read", {"file": "data/hours.xlsx"}), _set("data/hours.xlsx", who + 2, 2, hours)],
        [_set("data/hours.xlsx", (who + 1) % len(people) + 2, 2, hours)],
        desk,
    )


def selection(desk: Desk) -> Task:
    """Copy the rows above a limit into a new workbook, exactly."""
    table, _ = _table(desk, "name", "score")
    limit = sorted(int(row[1]) for row in table[1:])[1]
    chosen = [table[0], *(row for row in table[1:] if int(row[1]) > limit)]
    asked = "data/scores.xlsx"
    return Task(
        ("excel",),
        f"Make data/selected.xlsx with the header and the rows of {asked} with a score above {limit}, in their order.",
        {asked: table},
        [{"check": "exact_match", "file": "data/selected.xlsx", "reference": "selected.xlsx"}],
        [("excel_read", {"file": asked}), _create("data/selected.xlsx", chosen)],
        [_create("data/selected.xlsx", table)],
        desk,
        {"selected.xlsx": chosen},
    )


def report(desk: Desk) -> Task:
    """From a table to a PDF."""
    table, _ = _table(desk, "name", "sales")
    best, other = (sorted(table[1:], key=lambda row: -int(row[1]))[rank] for rank in (0, -1))
    text = "The best seller is {0[0]} with {0[1]}."
    return Task(
        ("excel", "pdf"),
        "Write data/best.pdf with one sentence: who sold most according to data/sales.xlsx, and how much. No others.",
        {"data/sales.xlsx": table},
        [
            _contain("data/best.pdf", str(best[0]), str(best[1])),
            _contain("data/best.pdf", str(other[0])) | {"check": "not_contain"},
        ],
        [("excel_read", {"file": "data/sales.xlsx"}), _pdf("data/best.pdf", text.format(best))],
        [("excel_to_pdf", {"file": "data/sales.xlsx", "pdf_file": "data/best.pdf"})],
        desk,
    )


def appointment(desk: Desk) -> Task:
    """From a mail to the only free hour of a day."""
    (other,) = desk.people(1)
    day, free = desk.day(), desk.dice.randint(9, 16)
    busy = [
        {"summary": f"block {hour}", "start": f"{day}T{hour:02}:00:00", "end": f"{day}T{hour + 1:02}:00:00"}
        for hour in range(9, 17)
        if hour != free
    ]
    calendar = f"calendar/{desk.user}.ics"
    body = f"Can we meet on {day} for an hour, between 9:00 and 17:00? Please call it 'talk with {other}'."
    return Task(
        ("email", "calendar"),
        f"{other} asked me by mail for a meeting. Put it into my calendar where it doesn't clash with anything.",
        {calendar: busy, f"emails/{desk.user}/meeting.eml": _mail(other, desk.user, "meeting", body)},
        [
            {"check": "no_overlap", "username": desk.user},
            _contain(calendar, f"DTSTART:{_stamp(day, free)}", f"talk with {other}"),
        ],
        [
            ("email_read", {"file": f"emails/{desk.user}/meeting.eml"}),
            ("calendar_list", {"user": desk.user}),
            _event(desk, f"talk with {other}", day, free, f"{free + 1}:00"),
        ],
        [_event(desk, f"talk with {other}", day, free, f"{free + 1}:00"), _event(desk, "x", day, 8, "18:00")],
        desk,
    )


def memo(desk: Desk) -> Task:
    """From a PDF to a Word document."""
    number, amount, ware = desk.dice.randint(1000, 9999), desk.dice.randint(200, 9000), desk.dice.choice(_WARES)
    lines = [f"Invoice {number}", f"Office supplies: {ware}", "", f"Total: {amount} EUR"]
    text = f"Invoice {number} is about {ware}.\nThe total is {amount} EUR."
    return Task(
        ("pdf", "word"),
        f"Summarize data/invoice-{number}.pdf in data/memo.docx: its number, what it is for, and the total.",
        {f"data/invoice-{number}.pdf": lines},
        [_contain("data/memo.docx", str(number), ware, str(amount))],
        [
            ("pdf_read", {"file": f"data/invoice-{number}.pdf"}),
            ("word_write", {"file": "data/memo.docx", "text": text}),
        ],
        [("word_write", {"file": "data/memo.docx", "text": text.replace(str(amount), "unknown")})],
        desk,
    )


def archive(desk: Desk) -> Task:
    """From the text files of an archive to a total in a workbook, and tidy up."""
    people = desk.people(3)
    counts = [desk.dice.randint(10, 99) for _ in people]
    total = sum(counts)
    rows: list[list[Any]] = [["who", "count"], *([p, c] for p, c in zip(people, counts, strict=True)), ["total", total]]
    return Task(
        ("files", "excel"),
        "Unpack data/counts.zip, put who counted what into data/counts.xlsx (a row each below the header, and the "
        "total in the second column of the row after them), and delete the archive.",
        {"data/counts.zip": {f"{p}.txt": f"{p} counted {c}" for p, c in zip(people, counts, strict=True)}},
        [
            {"check": "cells", "file": "data/counts.xlsx", "cells": [_cell(5, 2, total)]},
            _contain("data/counts.xlsx", *people),
            {"check": "file_not_exist", "file": "data/counts.zip"},
        ],
        [
            ("file_extract", {"archive": "data/counts.zip", "folder": "data"}),
            *(("file_read", {"file": f"data/{p}.txt"}) for p in people),
            _create("data/counts.xlsx", rows),
            ("file_delete", {"file": "data/counts.zip"}),
        ],
        [_create("data/counts.xlsx", rows)],
        desk,
    )


def order(desk: Desk) -> Task:
    """Excel, Word and mail: what runs low is ordered by a letter that is sent."""
    (supplier,) = desk.people(1)
    wares = desk.dice.sample(_WARES, 5)
    stock = [desk.dice.randint(20, 90) for _ in wares]
    low, least = desk.dice.randrange(5), desk.dice.randint(1, 9)
    stock[low] = least
    letter = f"Dear {supplier},\nplease send us {100 - least} {wares[low]}.\n{desk.user}"
    return Task(
        ("excel", "word", "email"),
        "Find the item of data/stock.xlsx that we have least of. Write data/order.docx, a letter that orders as many "
        f"as make it 100, and send it to {supplier} by email, as an attachment and with the item in the subject.",
        {"data/stock.xlsx": [["item", "stock"], *([w, s] for w, s in zip(wares, stock, strict=True))]},
        [
            _contain("data/order.docx", wares[low], str(100 - least)),
            {"check": "contain", "mail_of": supplier, "keywords": [wares[low], "Attachment: order.docx"]},
        ],
        [
            ("excel_read", {"file": "data/stock.xlsx"}),
            ("word_write", {"file": "data/order.docx", "text": letter}),
            _send(desk, supplier, "See the letter.", f"order of {wares[low]}", "data/order.docx"),
        ],
        [
            ("word_write", {"file": "data/order.docx", "text": letter}),
            _send(desk, supplier, f"We need {wares[low]}.", f"order of {wares[low]}"),
        ],
        desk,
    )


def deadline(desk: Desk) -> Task:
    """PDF, calendar and mail: a contract's end, remembered and told."""
    (lawyer,) = desk.people(1)
    day, firm = (
        desk.day(),
        desk.dice.choice(("Acorn", "Birch", "Cedar", "Hazel", "Maple")) + f" {desk.dice.randint(2, 99)}",
    )
    calendar = f"calendar/{desk.user}.ics"
    solution: list[Call] = [
        ("pdf_read", {"file": "data/contract.pdf"}),
        _event(desk, f"contract with {firm} ends", day, 9, "10:00"),
        _send(desk, lawyer, f"Our contract with {firm} ends on {day}."),
    ]
    return Task(
        ("pdf", "calendar", "email"),
        f"When does our contract with {firm} (data/contract.pdf) end? Enter 'contract with {firm} ends' in my calendar "
        f"on that day from 9:00 to 10:00, and mail the date (like 2025-12-31) to {lawyer}.",
        {
            "data/contract.pdf": [
                f"Contract between us and {firm}",
                "Signed 2024-01-02",
                f"This contract ends on {day}.",
            ]
        },
        [
            _contain(calendar, f"DTSTART:{_stamp(day, 9)}", f"contract with {firm} ends"),
            {"check": "contain", "mail_of": lawyer, "keywords": [str(day)]},
        ],
        solution,
        solution[:2],
        desk,
    )


KINDS: tuple[Kind, ...] = (
    meeting, answer, correction, selection,
    report, appointment, memo, archive,
    order, deadline,
)  # fmt: skip


def _table(desk: Desk, *header: str) -> tuple[list[list[Any]], list[str]]:
    people = desk.people(6)
    numbers = desk.dice.sample(range(20, 99), len(people))
    return [list(header), *([name, n] for name, n in zip(people, numbers, strict=True))], people


def _stamp(day: date, hour: int, minute: int = 0) -> str:
    return f"{day:%Y%m%d}T{hour:02}{minute:02}00"


def _contain(file: str, *keywords: str) -> dict[str, Any]:
    return {"check": "contain", "file": file, "keywords": list(keywords)}


def _mail(sender: str, to: str, subject: str, body: str) -> dict[str, str]:
    return {"from": sender, "to": to, "subject": subject, "body": body}


def _cell(row: int, column: int, value: Any) -> dict[str, Any]:
    return {"row": row, "column": column, "values": [str(value)]}


def _event(desk: Desk, summary: str, day: date, hour: int, end: str) -> Call:
    start, end = f"{day} {hour:02}:00", f"{day} {end.zfill(5)}"
    return "calendar_create", {"user": desk.user, "summary": summary, "start": start, "end": end}


def _send(desk: Desk, to: str, body: str, subject: str = "for you", attachment: str = "") -> Call:
    known = {"sender": desk.user, "recipient": to, "subject": subject, "body": body}
    return "email_send", known | ({"attachment": attachment} if attachment else {})


def _set(file: str, row: int, column: int, value: Any) -> Call:
    return "excel_set_cell", {"file": file, "row": row, "column": column, "value": str(value)}


def _create(file: str, rows: list[list[Any]]) -> Call:
    return "excel_create", {"file": file, "rows": [[str(cell) for cell in row] for row in rows]}


def _pdf(file: str, text: str) -> Call:
    return "pdf_write", {"file": file, "text": text}
