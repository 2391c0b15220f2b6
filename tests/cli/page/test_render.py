"""The page as HTML: whatever runs are called, it is one page that fetches nothing."""

import json
import re

from trainer.cli.page.render import live_page, report_page

EVIL = "</script><img src=x onerror=alert(1)><!-- \u2028 &amp; \ud800"


def data_of(text):
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(content)


def test_report_holds_its_data_and_nothing_gets_out_of_it():
    data = {"folder": EVIL, "runs": [{"name": EVIL, "value": float("nan")}]}
    text = report_page(EVIL.replace("\ud800", ""), data)
    assert data_of(text) == {"folder": EVIL, "runs": [{"name": EVIL, "value": None}]}
    assert "<img" not in text
    assert "\u2028" not in text.partition("</title>")[2]
    assert "data-live" not in re.findall("<body[^>]*>", text)[0]
    assert text.startswith("<!doctype html>")


def test_page_runs_and_fetches_only_its_own():
    live, policy = live_page("runs")
    report = report_page("runs", {})
    assert "data-live" in re.findall("<body[^>]*>", live)[0]
    assert 'id="data"' not in live
    for text in (live, report):
        (nonce,) = set(re.findall(r'nonce="([^"]+)"', text))
        assert f"&#39;nonce-{nonce}&#39;" in text
        assert not re.findall(r"<script(?! nonce=| type=\"application/json\")", text)
        assert not re.findall(r"""(?:src|href)=["'](?!data:|#)|https?://|url\(""", text)
    assert "connect-src" not in report
    assert policy.startswith("default-src 'none'; style-src 'nonce-")
    assert "http" not in policy
    assert live_page("runs")[1] != policy
