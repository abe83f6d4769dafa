from inference_node.speculate.propose import NgramDrafter, NoDrafter


def guess(logits, position):
    raise AssertionError("nothing to guess from")


def ngram(tokens: list[int], most: int = 4, **options) -> list[int]:
    return NgramDrafter(8, **options).propose(tokens, most, guess)


def test_none_proposes_nothing():
    assert NoDrafter(8).propose([1, 2, 1, 2], 7, guess) == []


def test_what_followed_the_same_tokens_before_is_proposed():
    assert ngram([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]


def test_the_longest_match_wins_over_the_latest():
    assert ngram([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], most=2) == [3, 8]


def test_among_equal_matches_the_latest_wins():
    assert ngram([1, 2, 3, 1, 2, 4, 1, 2], lengths=(2,)) == [4, 1, 2, 4]


def test_no_match_proposes_nothing():
    assert ngram([1, 2, 3, 4]) == [] and ngram([1]) == [] and ngram([5, 5]) == []


def test_no_more_is_proposed_than_asked_for():
    assert ngram([1, 2, 3, 4, 5, 1, 2], most=2) == [3, 4]


def test_a_repeated_token_is_continued():
    assert ngram([5, 5, 5, 5, 5]) == [5, 5, 5, 5]
    assert ngram([1, 2, 3, 1, 2, 3, 1, 2], most=7) == [3, 1, 2, 3, 1, 2, 3]


def test_the_index_grows_with_the_sequence():
    drafter = NgramDrafter(8)
    tokens = [1, 2, 3, 4]
    assert drafter.propose(tokens, 4, guess) == []
    tokens += [1, 2]
    assert drafter.propose(tokens, 4, guess) == [3, 4, 1, 2]


def test_what_a_truncation_took_back_is_not_proposed():
    drafter = NgramDrafter(8)
    drafter.propose([1, 2, 3, 4, 5, 6, 7], 4, guess)
    drafter.truncate(3)
    tokens = [1, 2, 3, 9, 9, 4, 5]
    assert drafter.propose(tokens, 4, guess) == [], "4, 5 stood at another place in the text that is gone"
    tokens += [8, 2, 3]
    assert drafter.propose(tokens, 3, guess) == [9, 9, 4]


def test_another_sequence_starts_from_nothing():
    drafter = NgramDrafter(8)
    drafter.propose([1, 2, 3, 1, 2], 4, guess)
    drafter.reset()
    assert drafter.propose([4, 1, 2], 4, guess) == []


def test_a_resumed_checkpoint_indexes_its_own_tokens():
    drafter = NgramDrafter(8)
    kept = drafter.keep()
    drafter.propose([1, 2, 3, 4, 5], 4, guess)
    drafter.resume(kept)
    assert drafter.propose([6, 7, 8, 6, 7], 4, guess) == [8, 6, 7, 8]
