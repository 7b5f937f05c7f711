"""Who signs and who reads: locked profiles, the agent, and the kept token."""
