"""What happens in which order: Prefect flows and the job model.

Here live the `RolloutJob` model, the flows and their thin `@task` wrappers. Work itself lives in `tasks`, bytes in
`storage`. A new flow is a file whose stem is not an importable name, and nothing that is pickled is defined here.
"""
