# Made of _async/__init__.py by tools/unasync.py; change that, and run it.
"""The sync client, made of the async one by tools/unasync.py."""
