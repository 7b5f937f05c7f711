"""The devnet's processes: contracts and money, daemons, content."""
