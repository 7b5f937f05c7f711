"""From a job file or Python values to a job spec."""
