"""What the owner sees and controls: status, health, drain, diagnostics, gateway."""
