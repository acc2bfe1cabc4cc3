"""S3, through boto3.

Belongs here: clients and their requests, and every kind of request to an object store. Does not belong: which store a
path belongs to (`stores`). Every client of this project comes from `client.make_client`, or from a factory that the
user gives. A key is what follows the bucket, to the letter: `s3://b/a//c` and `s3://b/a/c` are two objects here,
though they have one location.
"""
