"""The command line: parse, call, report, exit code. What scripts may rely on is in the README."""
