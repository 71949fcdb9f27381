"""The catalog: Guild runs and journals into MLflow, records in and out, `runs_catalog.md`."""
