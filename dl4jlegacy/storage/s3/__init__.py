"""S3: sessions, locations, a local cache, folders of a run, uploads and downloads. Needs the extra ``aws``."""
