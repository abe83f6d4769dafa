from inference_node.lab import predict


def test_the_page_is_what_the_count_of_bytes_gives():
    assert predict.PAGE.read_text(encoding="utf-8") == predict.page(), "run `python -m inference_node.lab.predict`"
