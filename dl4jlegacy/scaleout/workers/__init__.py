"""The worker's part of a job: prefetch its batches, compute, measure."""
