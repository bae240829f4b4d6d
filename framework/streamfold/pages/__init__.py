"""Pages that one looks at: the graph of an application as a model, as Mermaid text and as a page, and reports."""
