"""What is measured, beside what it is measured against: asv runs the classes, ``compare`` prints a table."""
