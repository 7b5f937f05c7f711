"""What the owner sees: status, health, income, drain, gateway."""
