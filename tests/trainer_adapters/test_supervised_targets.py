"""What each position predicts, and which document it is of."""

import torch

from entrostat.trainer_adapters.supervised_targets import targets_of

LABELS = torch.tensor([[5, 6, 7, -100], [-100, 8, 9, 4]])


def test_labels_are_shifted_to_the_position_that_predicts_them():
    found = targets_of({"labels": LABELS}, 4)

    assert found.ids.tolist() == [[6, 7, -100, -100], [8, 9, 4, -100]]
    assert found.document.unique().tolist() == [0]


def test_labels_that_the_collator_has_shifted_stay_where_they_are():
    shifted = torch.tensor([[6, 7, -100, -100]])

    assert targets_of({"labels": LABELS[:1], "shift_labels": shifted}, 4).ids.tolist() == shifted.tolist()


def test_positions_that_begin_anew_begin_a_document():
    labels = torch.tensor([[-100, 6, -100, 8, 9, -100]])
    positions = torch.tensor([[0, 1, 0, 1, 2, 0]])

    found = targets_of({"labels": labels, "position_ids": positions}, 6)

    assert found.ids.tolist() == [[6, -100, 8, 9, -100, -100]]
    assert [d for d, i in zip(found.document[0].tolist(), found.ids[0].tolist(), strict=True) if i >= 0] == [0, 1, 1]


def test_documents_of_one_token_are_documents_and_so_is_each_token_of_padding():
    found = targets_of({"shift_labels": torch.tensor([[5, 6, 7, -100, -100]]),
                        "position_ids": torch.tensor([[0, 0, 1, 0, 0]])}, 5)  # fmt: skip

    assert found.document.tolist() == [[0, 1, 1, 2, 3]]


def test_tokens_put_before_the_row_predict_its_first_label():
    assert targets_of({"labels": LABELS[:1]}, 6).ids.tolist() == [[-100, 5, 6, 7, -100, -100]]


def test_one_row_of_positions_for_all_and_positions_of_images_leave_rows_whole():
    one = targets_of({"labels": LABELS, "position_ids": torch.arange(4)[None]}, 4)
    images = targets_of({"labels": LABELS, "position_ids": torch.zeros(3, 2, 4).long()}, 4)

    assert one.document.shape == LABELS.shape
    assert one.document.unique().tolist() == images.document.unique().tolist() == [0]


def test_a_batch_without_labels_that_fit_has_no_targets():
    assert targets_of({}, 4) is None
    assert targets_of({"labels": LABELS}, 3) is None
    assert targets_of({"labels": LABELS[:, 0]}, 4) is None
