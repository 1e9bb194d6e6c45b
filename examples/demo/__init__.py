"""The tour: `orchestrator demo`. Real input, a backfill on Spark, live instances, scaling, a kill, an independent check."""
