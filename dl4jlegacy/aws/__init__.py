"""AWS: clusters of EC2 instances, and models, checkpoints and data in S3. Needs the extra ``aws``.

The names are those of the legacy ``deeplearning4j-aws``. Importing them imports nothing of boto3, which is loaded when
it is first used.
"""

from dl4jlegacy.aws.instances import Ec2BoxCreator
from dl4jlegacy.aws.provision import HostProvisioner
from dl4jlegacy.storage.s3.downloader import BucketIterator, S3Downloader
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader

__all__ = ["Aws", "BucketIterator", "Ec2BoxCreator", "HostProvisioner", "S3Downloader", "S3Uploader"]
