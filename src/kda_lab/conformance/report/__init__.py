"""What a run says: a table, a JSON document, JUnit XML, a page."""
