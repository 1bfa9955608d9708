"""What a worker does with a job: prefetch its batches, compute, measure."""
