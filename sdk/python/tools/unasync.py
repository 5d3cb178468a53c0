"""Makes the sync client of the async one.

    python tools/unasync.py          writes src/sietch/_sync
    python tools/unasync.py --check  says whether that is what is there

A name is changed by a rule or not at all, so what it makes can be read, and is
kept in the repository: a wheel needs no step of its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "sietch" / "_async"
TARGET = SOURCE.with_name("_sync")

RULES = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ba(close|read|iter_bytes|iter_raw)\b", r"\1"),
    (r"\b_aio\b", "_blocking"),
    (r"\b_async\b", "_sync"),
    (r"\bAsync([A-Z]\w*)\b", r"\1"),
    (
        r"\bThe async client, and the source of the sync one; see\b",
        "The sync client, made of the async one by",
    ),
]
HEADER = "# Made of _async/{} by tools/unasync.py; change that, and run it.\n"


def sync_of(name: str, text: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return HEADER.format(name) + text


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    TARGET.mkdir(exist_ok=True)
    sources = {p.name: sync_of(p.name, p.read_text()) for p in sorted(SOURCE.glob("*.py"))}
    for name, text in sources.items():
        path = TARGET / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    for path in TARGET.glob("*.py"):
        if path.name not in sources:
            stale.append(path.name)
            if not check:
                path.unlink()
    if check and stale:
        print(f"not what tools/unasync.py makes: {', '.join(sorted(stale))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
