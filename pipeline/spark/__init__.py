"""The data pipeline on Spark: history, snapshots, hosting, audits. The only room that imports pyspark."""
