"""Files and folders on this machine, in S3 and on the Web."""
