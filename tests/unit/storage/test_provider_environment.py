"""Credentials in the environment of the driver reach workers that have none; paths stay where they are."""

from __future__ import annotations

import os
import pickle

import pytest

from headrace.engine.batch_job import BatchJob
from headrace.model.partition_map import PartitionMap
from headrace.storage import provider_environment
from headrace.storage.provider_environment import apply_provider_environment, read_provider_environment

DRIVER = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    for name in DRIVER:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(provider_environment, "_applied", {})


def test_a_job_carries_the_variables_of_the_driver_and_opening_its_store_sets_them(monkeypatch, tmp_path):
    for name, value in {**DRIVER, "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json", "AWS_PAGER": "less"}.items():
        monkeypatch.setenv(name, value)
    job = BatchJob(0, PartitionMap(1), PartitionMap(1), str(tmp_path), {}, ())
    assert job.storage_environment == DRIVER
    assert "secret" not in repr(job)
    sent = pickle.dumps(job)
    for name in DRIVER:
        monkeypatch.delenv(name)
    received = pickle.loads(sent)
    assert received.store.location == str(tmp_path)
    assert read_provider_environment() == DRIVER


def test_a_worker_with_credentials_of_its_own_keeps_them(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the worker")
    apply_provider_environment({**DRIVER, "AZURE_STORAGE_TOKEN": "token"})
    assert read_provider_environment() == {"AWS_ACCESS_KEY_ID": "of the worker", "AZURE_STORAGE_TOKEN": "token"}
    monkeypatch.delenv("AZURE_STORAGE_TOKEN")


def test_a_renewed_token_replaces_the_one_that_was_sent_before():
    apply_provider_environment(DRIVER)
    apply_provider_environment({**DRIVER, "AWS_SECRET_ACCESS_KEY": "renewed"})
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "renewed"
