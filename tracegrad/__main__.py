"""`python -m tracegrad` is `tracegrad`."""

from tracegrad.cli import main

main()
