"""Checks: each derives its expectation anew and reports what differs. Nothing here imports `repack`."""
