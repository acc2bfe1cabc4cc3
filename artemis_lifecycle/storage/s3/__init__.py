"""S3, through boto3.

Belongs here: clients, and every kind of request to an object store. Does not belong here: which store a path belongs to
(`stores`). Every client comes from `client.make_client`, or from a factory that the user provides. A key is exactly the
text after the bucket: `s3://b/a//c` and `s3://b/a/c` are two objects here, although they have the same location.
"""
