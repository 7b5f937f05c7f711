"""The provider's own watcher: it challenges epochs that pay less than its Statements."""
