"""The async client, and the source of the sync one; see tools/unasync.py."""
