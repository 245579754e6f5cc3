"""Test clouds: imitations of clouds on this computer, one room for each cloud, and the parts that they share.

`aws` serves EC2 with moto behind it; `gcp`, `hyperstack`, `lambda_labs`, `runpod` and `vast` are built on `shared`.

Public names: `aws`, `gcp`, `hyperstack`, `lambda_labs`, `runpod`, `vast`, `shared`.
Open first: `shared/front.py`.
"""
