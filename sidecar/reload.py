"""Which settings a running sidecar takes up anew."""

from tracegrad.settings import Settings, SidecarSettings

LIVE = frozenset(
    (
        *("max_body_bytes", "max_upload_bytes", "max_concurrency", "max_waiting", "max_wait_s", "timeout_s"),
        *("access_log", "admin_key", "admin_key_env", "admin_key_file"),
    )
)
"""Of `[sidecar]`; `[[model]]` and `[[tenant]]` too."""
FIXED = tuple(name for name in SidecarSettings.model_fields if name not in LIVE)


def taken_up(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """What is in force after a reload, and the names of the settings that have changed but need a restart."""
    waiting = [f"sidecar.{name}" for name in FIXED if getattr(old.sidecar, name) != getattr(new.sidecar, name)]
    waiting += ["otlp"] if old.otlp != new.otlp else []
    waiting += ["otlp_token, otlp_ca, otlp_cert and otlp_key"] if old.otlp_access != new.otlp_access else []
    kept = new.with_values("sidecar", **{name: getattr(old.sidecar, name) for name in FIXED})
    return kept.with_address("otlp", old.otlp), waiting
