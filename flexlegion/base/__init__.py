"""What everything else may use: errors, files, documents, quoting. It imports no other room."""
