"""What is computed: apps, topics, tables, processors, subtopologies. Pure; the one place that calls user code."""
