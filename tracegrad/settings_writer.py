"""Settings of `[collector]` for the one user who may write over ClickHouse HTTP."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator

from tracegrad.secret import Secret, one_secret


class WriterSettings(BaseModel):
    """`writer_password*`: of the user `writer` of the embedded store; without one it is made and kept beside rows."""

    model_config = ConfigDict(frozen=True)

    writer_password: SecretStr | None = None
    writer_password_env: str | None = None
    writer_password_file: Path | None = None

    @property
    def writer_secret(self) -> Secret | None:
        """The configured password; None where there is none."""
        return one_secret(
            "[collector] writer_password", self.writer_password, self.writer_password_env, self.writer_password_file
        )

    @model_validator(mode="after")
    def _one_writer_password(self) -> "WriterSettings":
        _ = self.writer_secret
        return self
