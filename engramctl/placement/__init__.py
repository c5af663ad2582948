"""Where a table lies, and how its rows come from there: page cache, memory or disk, equal bytes from each."""
