"""Text for terminals: tables, paragraphs, progress bars."""
