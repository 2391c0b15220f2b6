"""Amazon S3: an answer that is a success can hold errors."""

import pytest

from trainer.store.object_store import StoreError


@pytest.mark.parametrize(("code", "is_temporary"), [("AccessDenied", False), ("SlowDown", True)])
def test_object_that_was_not_deleted_is_an_error(code, is_temporary, monkeypatch):
    pytest.importorskip("boto3")
    from trainer.store.schemes.s3 import S3Store

    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    store = S3Store("bucket", "runs")

    class Client:
        def delete_objects(self, **request):
            assert request["Delete"]["Objects"] == [{"Key": "runs/a"}]
            return {"Errors": [{"Key": "runs/a", "Code": code, "Message": "no"}]}

    monkeypatch.setattr(store, "_client", Client())
    with pytest.raises(StoreError, match=code) as error:
        store.delete(["a"])
    assert error.value.is_temporary is is_temporary
