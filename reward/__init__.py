"""Where rewards come from: graders read finished rollouts and write OpenTelemetry evaluation events."""
