"""Files of the coordinator: documents, finished runs, uploads and sealed outputs."""
