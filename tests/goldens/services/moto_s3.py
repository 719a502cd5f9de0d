"""Makes moto_s3.json: what moto's S3 server, an implementation that is not ours, answers to a reader of objects.

pip install 'moto[s3,server]' && python tests/goldens/services/moto_s3.py     made with moto 5.2
"""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import requests
from moto.server import ThreadedMotoServer

HEADERS = ("content-type", "etag", "last-modified", "x-amzn-requestid")
PATHS = (
    "/corpus/final/results.csv",
    "/corpus/final/parts.bin",
    "/corpus/final/none.csv",
    "/none/a.csv",
    "/corpus?list-type=2&prefix=final%2F",
)


def main() -> None:
    """Fill a bucket, ask as our reader asks, and write down the answers."""
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    s3.create_bucket(Bucket="corpus", ACL="public-read")
    s3.put_object(Bucket="corpus", Key="final/results.csv", Body=b"a,b\n1,2\n", ACL="public-read")
    named = {"Bucket": "corpus", "Key": "final/parts.bin"}
    upload = s3.create_multipart_upload(**named, ACL="public-read")["UploadId"]
    part = s3.upload_part(**named, UploadId=upload, PartNumber=1, Body=b"one part\n")
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
    s3.complete_multipart_upload(**named, UploadId=upload, MultipartUpload={"Parts": parts})
    answers = {}
    for path in PATHS:
        answer = requests.get(url + path, timeout=10)
        headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
        answers[path] = {"status": answer.status_code, "headers": headers, "body": answer.text}
    server.stop()
    Path(__file__).with_suffix(".json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
