"""The front door and the shared vocabulary: command line, settings, attribute names, OTLP. No learning happens here."""

__version__ = "0.1.0"
