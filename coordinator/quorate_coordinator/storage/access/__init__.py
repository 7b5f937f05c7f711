"""Who may read runs, their documents and the content that they name."""
