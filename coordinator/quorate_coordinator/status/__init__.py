"""What the operator sees: status, metrics, reports, and the tables behind them."""
